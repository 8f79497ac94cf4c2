// An array of a work-item read past its end
__kernel void k(__global int *y, int n) {
  int a[4] = {1, 2, 3, 4}, sum = 0;
  for (int i = 0; i <= n; i++) sum += a[i];
  y[get_global_id(0)] = sum;
}
