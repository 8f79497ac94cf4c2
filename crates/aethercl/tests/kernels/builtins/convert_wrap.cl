// Without _sat an integer keeps its low bits
__kernel void k(__global const int *x, __global char *c, __global ushort *s, __global uint *u, __global long *l) {
  size_t g = get_global_id(0);
  c[g] = (char)x[g];
  s[g] = (ushort)x[g];
  u[g] = (uint)x[g];
  l[g] = (long)(uint)x[g] + (long)x[g];
}
