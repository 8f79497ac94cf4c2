kernel void if_else(global const int *in, global int *out) {
  size_t i = get_global_id(0);
  int n = in[i];
  if (n < 0)
    out[i] = -1;
  else if (n == 0)
    out[i] = 0;
  else {
    out[i] = 1;
    if (n > 10) out[i] = 2;
  }
}
