kernel void ternary(global const int *in, global float *out) {
  size_t i = get_global_id(0);
  int n = in[i];
  out[i] = n > 0 ? n * 2 : n < -5 ? 0.5f : -1;
}
