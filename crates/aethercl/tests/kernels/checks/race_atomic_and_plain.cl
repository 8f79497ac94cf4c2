// An atomic and a plain access to one word are a race
__kernel void k(__global int *y, __global int *z) {
  atomic_inc(y);
  z[get_global_id(0)] = y[0];
}
