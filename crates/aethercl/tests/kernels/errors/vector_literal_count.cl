kernel void k(global float4 *out) {
  out[0] = (float4)(1.0f, 2.0f);
  out[1] = (float4)(1.0f, 2.0f, 3.0f, 4.0f, 5.0f);
  out[2] = (float4)((float2)(1.0f, 2.0f), (int2)(3, 4));
}
