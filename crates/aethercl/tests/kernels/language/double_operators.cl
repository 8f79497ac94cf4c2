kernel void double_operators(global const double *a, global double *out) {
  out[0] = a[0] + 1.0f;
  out[1] = a[0] * 0.1;
  out[2] = (float)a[0];
  out[3] = a[0] / 3;
}
