kernel void k(global float4 *out, float2 two) {
  out[0].xx = two;
  out[0].xyq = 1.0f;
  out[0].x = two.z;
  out[0].xyxyx = 1.0f;
  out[0].s04 = two;
}
