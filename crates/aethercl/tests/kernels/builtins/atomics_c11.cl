// OpenCL C 2.0 atomics
__kernel void k(__global atomic_int *y, __global int *z) {
  atomic_fetch_add(&y[0], 2);
  int expected = 5;
  if (atomic_compare_exchange_strong(&y[1], &expected, (int)get_global_id(0) + 10)) z[0] = 1;
  atomic_fetch_max(&y[2], (int)get_global_id(0));
  atomic_store(&y[3], 4);
}
