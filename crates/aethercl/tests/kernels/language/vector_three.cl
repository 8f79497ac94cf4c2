/* Three lanes occupy the space of four, but vload3 reads three. */
kernel void vector_three(global const float *in, global float3 *aligned, global float *packed) {
  float3 v = vload3(1, in);
  aligned[0] = v;
  aligned[1] = v.zyx * 2;
  vstore3(v + 1, 1, packed);
  float3 w = aligned[1];
  packed[0] = dot(v, w);
}
