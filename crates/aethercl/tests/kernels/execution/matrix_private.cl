// A two-dimensional array that loops of known length fill
__kernel void k(__global const int *x, __global int *y) {
  int i = get_global_id(0), m[3][4];
  for (int r = 0; r < 3; r++)
    for (int c = 0; c < 4; c++) m[r][c] = x[r * 4 + c] * i;
  int sum = 0;
  for (int c = 0; c < 4; c++)
    for (int r = 0; r < 3; r++) {
      if (c == 2) continue;
      sum = sum * 2 + m[r][c];
    }
  y[i] = sum;
}
