// Groups at the end may be smaller than the others
__kernel void k(__global int *y) {
  y[get_global_id(0)] = get_local_size(0) * 100 + get_enqueued_local_size(0) * 10 + get_num_groups(0);
}
