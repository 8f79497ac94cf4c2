// Arrays in private memory with an index that differs between work-items
__kernel void k(__global int *y) {
  int i = get_global_id(0);
  int a[5] = {1, 2, 3};
  a[i % 5] += 10 * i;
  a[4 - i % 5] *= 2;
  int sum = 0;
  for (int j = 0; j < 5; j++) sum = sum * 3 + a[j];
  y[i] = sum + a[(i + 1) % 5];
}
