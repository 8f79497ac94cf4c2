/* Groups of a launch that add to each other's work, on NVIDIA: a counter in memory says whose turn it is.
 * Needs NVIDIA_CC of 70 or more.
 *
 * Design: a ticket lock without the lock (Mellor-Crummey and Scott 1991); CUTLASS has it as semaphore.h.
 */
#if NVIDIA_CC >= 70
/* How many came before; what they wrote is seen, and what this group wrote by those that follow. */
static inline int turn_taken(__global int *turn) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(turn) : "memory");
  return before;
}
/* Written by another multiprocessor: from the cache that all share. */
static inline float4 part_of(__global const float *from) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from) : "memory");
  return v;
}
static inline float part_1_of(__global const float *from) {
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(from) : "memory");
  return v;
}
#endif
