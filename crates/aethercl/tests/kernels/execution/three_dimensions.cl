// Groups in three dimensions
__kernel void k(__global int *y) {
  size_t x = get_global_id(0), z = get_global_id(2), w = get_global_size(0), h = get_global_size(1);
  size_t at = (z * h + get_global_id(1)) * w + x;
  y[at] = get_group_id(0) + 10 * get_group_id(1) + 100 * get_group_id(2) + 1000 * get_local_linear_id();
}
