// Saturation between integers of all widths and signs
__kernel void k(__global const long *x, __global char *c, __global ushort *s, __global int *i, __global uint *u) {
  size_t g = get_global_id(0);
  c[g] = convert_char_sat(x[g]);
  s[g] = convert_ushort_sat(x[g]);
  i[g] = convert_int_sat(x[g]);
  u[g] = convert_uint_sat((int)x[g]);
}
