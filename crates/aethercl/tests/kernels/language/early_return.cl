float root(float x) {
  if (x < 0.0f) return -1.0f;
  for (int i = 0; i < 100; i++) {
    if (i * i >= x) return i;
  }
  return 100.0f;
}

kernel void early_return(global const float *in, global float *out, uint n) {
  size_t i = get_global_id(0);
  if (i >= n) return;
  out[i] = root(in[i]);
}
