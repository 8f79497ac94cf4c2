// Functions of a sub-group: 32 items here, the last one smaller
__kernel void k(__global int *y) {
  int i = get_global_id(0);
  y[5 * i] = sub_group_reduce_add(i);
  y[5 * i + 1] = sub_group_broadcast(i, 2);
  y[5 * i + 2] = get_sub_group_id() * 100 + get_sub_group_local_id();
  y[5 * i + 3] = get_sub_group_size() * 100 + get_num_sub_groups();
  y[5 * i + 4] = sub_group_scan_exclusive_add(1);
}
