kernel void global_offset(global int *out) {
  size_t i = get_global_id(0) - get_global_offset(0);
  out[i] = get_global_id(0) * 100 + get_local_id(0) * 10 + get_group_id(0);
}
