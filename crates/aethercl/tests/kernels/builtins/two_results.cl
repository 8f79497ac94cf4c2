// Functions that give a second result through a pointer
__kernel void k(__global const float *x, __global float *y, __global int *n) {
  size_t i = get_global_id(0);
  float whole, cosine;
  int e, q, sign;
  y[7 * i] = fract(x[i], &whole);
  y[7 * i + 1] = whole;
  y[7 * i + 2] = modf(x[i], &whole);
  y[7 * i + 3] = whole;
  y[7 * i + 4] = frexp(x[i], &e);
  y[7 * i + 5] = remquo(x[i], 3.0f, &q);
  y[7 * i + 6] = lgamma_r(x[i], &sign);
  n[3 * i] = e;
  n[3 * i + 1] = q;
  n[3 * i + 2] = sign;
}
