struct settings { int n; float scale; };

kernel void value_arguments(global float *out, struct settings s, float4 v, char c, ulong l) {
  out[0] = s.n * s.scale;
  out[1] = v.w + c;
  out[2] = l >> 32;
}
