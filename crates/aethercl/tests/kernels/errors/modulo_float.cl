kernel void k(global float *out, float a, float4 v) {
  out[0] = a % 2.0f;
  out[1] = ~a;
  out[2] = a << 1;
  v = v & v;
}
