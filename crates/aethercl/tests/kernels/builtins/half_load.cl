// vload_half, denormals and infinities included; three lanes step by three, aligned ones by four
__kernel void k(__global const half *x, __global float *y, __global float4 *v) {
  for (int i = 0; i < 8; i++) y[i] = vload_half(i, x);
  v[0] = (float4)(vload_half3(1, x), 0.0f);
  v[1] = (float4)(vloada_half3(1, x), 0.0f);
}
