/* Cooperation of groups within a launch on NVIDIA GPUs: a counter in memory gives the order of the groups that share a result.
 *
 * turn_taken(turn)               Adds 1 to the counter and returns the previous value, with acquire and release order over the device.
 * part_of(from), part_1_of(from) Read four floats, or one, that another multiprocessor wrote, from the L2 cache.
 *
 * Define: NVIDIA_CC; below 70, the file defines no function.
 * Design: a ticket lock without the lock (Mellor-Crummey and Scott 1991); CUTLASS has it as semaphore.h.
 */
#if NVIDIA_CC >= 70
/* Returns how many groups came before. Their writes are visible after the call, and this group's writes are visible to later groups. */
static inline int turn_taken(__global int *turn) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(turn) : "memory");
  return before;
}
/* Loads what another multiprocessor wrote, from the shared L2 cache. */
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
