kernel void constants_of_math(global float *out, global int *i) {
  out[0] = M_PI_F;
  out[1] = FLT_MAX;
  out[2] = FLT_MIN;
  out[3] = FLT_EPSILON;
  out[4] = INFINITY;
  out[5] = -HUGE_VALF;
  out[6] = isnan(NAN);
  out[7] = M_SQRT1_2_F;
  i[0] = INT_MAX;
  i[1] = INT_MIN;
  i[2] = CHAR_BIT;
  i[3] = UINT_MAX == 0xffffffffu && ULONG_MAX == 0xffffffffffffffffUL;
  i[4] = __OPENCL_C_VERSION__;
  i[5] = __ENDIAN_LITTLE__;
}
