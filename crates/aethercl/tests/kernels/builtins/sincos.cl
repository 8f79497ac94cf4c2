// Sine and cosine at once, of a vector
__kernel void k(__global const float4 *x, __global float4 *s, __global float4 *c) {
  float4 cosine;
  s[0] = sincos(x[0], &cosine);
  c[0] = cosine;
}
