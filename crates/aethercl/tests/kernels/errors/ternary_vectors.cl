kernel void k(global float4 *out, int4 c, short4 s, float4 a, float4 b) {
  out[0] = c ? a : b;
  out[1] = s ? a : b;
  out[2] = a ? a : b;
}
