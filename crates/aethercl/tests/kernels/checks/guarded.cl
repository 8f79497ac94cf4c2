// The guard that the others lack: no finding
__kernel void k(__global const float *x, __global float *y, int n) {
  int i = get_global_id(0);
  if (i >= n) return;
  y[i] = (i + 1 < n ? x[i + 1] : 0.0f) - x[i];
}
