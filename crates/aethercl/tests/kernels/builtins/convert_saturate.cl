// _sat gives the nearest value that fits, NaN becomes 0
__kernel void k(__global const float *x, __global char *c, __global uchar *u, __global int *i, __global ulong *l) {
  size_t g = get_global_id(0);
  c[g] = convert_char_sat(x[g]);
  u[g] = convert_uchar_sat(x[g]);
  i[g] = convert_int_sat(x[g]);
  l[g] = convert_ulong_sat(x[g]);
}
