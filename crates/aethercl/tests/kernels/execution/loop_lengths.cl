// Work-items leave a loop after different numbers of rounds
__kernel void k(__global int *y) {
  int i = get_global_id(0), sum = 0;
  for (int j = 0; j <= i; j++) sum += j;
  int n = 0;
  while ((i >> n) != 0) n++;
  int m = 0;
  do m += 2; while (m < i);
  y[3 * i] = sum;
  y[3 * i + 1] = n;
  y[3 * i + 2] = m;
}
