kernel void reduction(global const float *in, global float *out, local float *s) {
  int l = get_local_id(0);
  s[l] = in[get_global_id(0)];
  for (int h = get_local_size(0) / 2; h > 0; h >>= 1) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (l < h) s[l] += s[l + h];
  }
  if (l == 0) out[get_group_id(0)] = s[0];
}
