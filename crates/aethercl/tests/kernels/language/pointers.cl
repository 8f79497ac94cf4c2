void swap(int *a, int *b) {
  int t = *a;
  *a = *b;
  *b = t;
}

kernel void pointers(global int *out, global const int *in) {
  int a = 1, b = 2;
  swap(&a, &b);
  out[0] = a;
  out[1] = b;
  global const int *p = in + 2, *q = &in[5];
  out[2] = *p;
  out[3] = p[1];
  out[4] = q - p;
  out[5] = p < q;
  out[6] = 1[q];
  p += 2;
  out[7] = *(p - 1);
  int *null = 0;
  out[8] = null == NULL;
  int grid[2][3] = {{1, 2, 3}, {4, 5, 6}};
  int (*row)[3] = grid + 1;
  out[9] = (*row)[2] + row[-1][0];
  int *flat = &grid[0][0];
  out[10] = flat[4];
}
