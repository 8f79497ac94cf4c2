kernel void switch_default_first(global const char *in, global int *out) {
  size_t i = get_global_id(0);
  out[i] = 0;
  switch (in[i]) {
    default: out[i] += 1;
    case 'a': out[i] += 2; break;
    case 'b': out[i] += 4;
  }
}
