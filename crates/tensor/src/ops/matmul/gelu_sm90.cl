/* GELU (tanh) of x with the bits of the product's epilogue that left x (matmul_wgmma_sm90, GELU): made again in the backward
 * instead of being kept.
 *
 * x, y (n) T, 16 bits. Two neighbours a work-item; n is even, as a multiple of 8 is.
 * Ceiling: 4 bytes an element over the bandwidth of memory. H200, in a GPT-2 step: 2.1 of 4.8 TB/s.
 */
static inline float tanh_fast(float x) {
  float r;
  asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
static inline float gelu(float x) {
  return 0.5f * x * (1.0f + tanh_fast(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

__kernel void gelu_recomputed(__global const T *x, __global T *y, ulong n) {
  const ulong i = (ulong)get_global_id(0) * 2;
  if (i >= n) return;
  ST(y, i, gelu(LD(x, i)));
  ST(y, i + 1, gelu(LD(x, i + 1)));
}
