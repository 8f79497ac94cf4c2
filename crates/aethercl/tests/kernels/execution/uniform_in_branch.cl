// The same assignment for all who come here is not one for all
__kernel void k(__global int *y, int n) {
  int i = get_global_id(0), v = 1;
  if (i & 1) {
    v = n;
    int w = n + 1;
    for (int j = 0; j < w; j++) v += j;
  }
  y[i] = v;
}
