// Only the side that is taken loads; vectors choose lane by lane
__kernel void k(__global int *y, __global const int *x, __global float4 *v) {
  int i = get_global_id(0);
  y[i] = i < 4 ? x[i] : -1;
  if (i == 0) v[0] = (int4)(-1, 0, 1, -5) ? (float4)(1.0f) : (float4)(2.0f);
}
