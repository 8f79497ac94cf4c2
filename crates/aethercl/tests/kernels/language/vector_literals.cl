kernel void vector_literals(global float4 *out, global int8 *wide) {
  float2 a = (float2)(1.0f, 2.0f);
  out[0] = (float4)(a, 3.0f, 4.0f);
  out[1] = (float4)(0.5f);
  out[2] = (float4)(9, a, 8);
  out[3] = (float4)(a, a).yxwz;
  wide[0] = (int8)((int4)(1, 2, 3, 4), (int2)(5, 6), 7, 8);
  wide[1] = (int8)(-1);
}
