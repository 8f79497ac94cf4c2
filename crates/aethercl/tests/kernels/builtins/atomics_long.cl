// 64-bit atomics
#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable
#pragma OPENCL EXTENSION cl_khr_int64_extended_atomics : enable
__kernel void k(__global long *y) {
  atom_add(&y[0], 0x100000000L);
  atom_max(&y[1], (long)get_global_id(0) << 40);
  atom_inc(&y[2]);
}
