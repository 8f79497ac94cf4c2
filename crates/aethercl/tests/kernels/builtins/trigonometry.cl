// Sine, cosine, tangent, also of angles that need a long reduction
__kernel void k(__global const float *x, __global float *y) {
  size_t i = get_global_id(0);
  y[i * 3 + 0] = sin(x[i]);
  y[i * 3 + 1] = cos(x[i]);
  y[i * 3 + 2] = tan(x[i]);
}
