// Angles in half turns: whole and half ones are exact
__kernel void k(__global const float *x, __global float *y) {
  size_t i = get_global_id(0);
  y[i * 3 + 0] = sinpi(x[i]);
  y[i * 3 + 1] = cospi(x[i]);
  y[i * 3 + 2] = tanpi(x[i]);
}
