// An offset beyond 32 bits
__kernel void k(__global ulong *y) {
  ulong i = get_global_id(0);
  y[i - get_global_offset(0)] = i;
}
