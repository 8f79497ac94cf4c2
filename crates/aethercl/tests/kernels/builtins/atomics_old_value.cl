// Atomics return the old value: each item gets a different position
__kernel void k(__global int *count, __global int *seen) {
  int place = atomic_inc(count);
  seen[place] = 1;
  if (atomic_cmpxchg(count + 1, 0, 7) == 0) seen[16] = 1;
  if (get_global_id(0) == 3) count[2] = atomic_xchg(count + 3, 9);
}
