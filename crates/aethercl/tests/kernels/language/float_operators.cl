kernel void float_operators(global const float *a, global float *out) {
  float x = a[0], y = a[1];
  out[0] = x + y;
  out[1] = x - y;
  out[2] = x * y;
  out[3] = x / y;
  out[4] = -x;
  out[5] = +y;
  out[6] = x > y ? x : y;
  out[7] = 1 / 2 + x;
}
