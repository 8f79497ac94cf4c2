kernel void half_storage(global const half *in, global half *out, global float *f) {
  size_t i = get_global_id(0);
  float x = vload_half(i, in);
  f[i] = x;
  vstore_half(x * 0.1f, i, out);
  vstore_half_rtz(x * 0.1f, i + 4, out);
}
