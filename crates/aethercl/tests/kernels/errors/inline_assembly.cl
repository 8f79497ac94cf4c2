kernel void k(global uint *out) {
  uint lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  out[0] = lane;
}
