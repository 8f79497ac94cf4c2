kernel void k(global int *y, uint first) {
  int i = get_global_id(0) + get_global_id(1) * 4;
  int sum = 0;
  for (uint d = first; d < 5; d++)
    sum = sum * 10 + get_global_size(d) + get_local_size(d) + 3 * get_global_id(d) + get_group_id(d);
  y[2 * i] = sum;
  y[2 * i + 1] = get_local_id(i % 4);
}
