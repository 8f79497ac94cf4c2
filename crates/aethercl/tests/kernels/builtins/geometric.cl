// Lengths do not overflow where the squares would
__kernel void k(__global const float4 *x, __global float *y, __global float4 *v) {
  size_t i = get_global_id(0);
  y[4 * i] = dot(x[i], x[i]);
  y[4 * i + 1] = length(x[i]);
  y[4 * i + 2] = distance(x[i].xy, x[i].zw);
  y[4 * i + 3] = fast_length(x[i].xyz);
  v[2 * i] = normalize(x[i]);
  v[2 * i + 1] = cross(x[i], (float4)(0, 0, 1, 0));
}
