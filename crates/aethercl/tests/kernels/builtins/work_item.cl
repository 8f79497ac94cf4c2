// Who am I: ids, sizes, offsets in three dimensions
__kernel void k(__global int *y) {
  size_t i = get_global_linear_id();
  y[8 * i] = get_global_id(0);
  y[8 * i + 1] = get_global_id(1);
  y[8 * i + 2] = get_local_id(0);
  y[8 * i + 3] = get_group_id(1);
  y[8 * i + 4] = get_local_linear_id();
  y[8 * i + 5] = get_num_groups(0) * 100 + get_global_size(1) * 10 + get_local_size(0);
  y[8 * i + 6] = get_global_offset(0) * 10 + get_work_dim();
  y[8 * i + 7] = get_global_id(3) * 10 + get_global_size(7);
}
