kernel void comparisons(global const float *a, global int *out) {
  float x = a[0], y = a[1], n = a[2];
  out[0] = x < y;
  out[1] = x <= x;
  out[2] = x > y;
  out[3] = y >= x;
  out[4] = x == y;
  out[5] = x != y;
  out[6] = n == n;
  out[7] = n != n;
  out[8] = n < x;
  out[9] = !(n < x);
}
