// Read-modify-write of shared words; nothing is lost
__kernel void k(__global int *y, __global uint *u) {
  int i = get_global_id(0);
  atomic_add(&y[0], i);
  atomic_sub(&y[1], i);
  atomic_inc(&y[2]);
  atomic_dec(&y[3]);
  atomic_min(&y[4], -i);
  atomic_max(&y[5], i * 3);
  atomic_and(&y[6], ~(1 << i));
  atomic_or(&y[7], 1 << i);
  atomic_xor(&y[8], i);
  atomic_min(&u[0], 0x80000000u + i);
  atomic_max(&u[1], 0x80000000u + i);
}
