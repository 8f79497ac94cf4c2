/* With a vector condition ?: takes the first side where the lane's highest bit is set. */
kernel void vector_choice(global float4 *out, float4 a, float4 b, int4 c) {
  out[0] = a < b ? a : b;
  out[1] = c ? a : b;
  out[2] = c ? a : 0.5f;
  out[3] = any(c) ? a : b;
}
