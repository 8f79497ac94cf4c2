kernel void work_items(global int *out) {
  size_t i = get_global_id(1) * get_global_size(0) + get_global_id(0);
  out[i] = get_global_id(0) + 10 * get_global_id(1) + 100 * get_local_id(0) + 1000 * get_group_id(1) +
           10000 * get_num_groups(0) + 100000 * get_local_size(1) + 1000000 * get_global_size(0);
}
