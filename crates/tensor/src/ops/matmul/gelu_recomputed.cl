/* GELU (tanh) of x with the bits of the product's epilogue that left x (matmul_wgmma_sm90, GELU; the same function of
 * include/gelu_sm90.cl): made again in the backward instead of being kept.
 *
 * x, y (n) T, 16 bits. Two neighbours a work-item; n is even, as a multiple of 8 is.
 * Ceiling: 4 bytes an element over the bandwidth of memory. H200, in a GPT-2 step: 2.1 of 4.8 TB/s.
 */
__kernel void gelu_recomputed(__global const T *x, __global T *y, ulong n) {
  const ulong i = (ulong)get_global_id(0) * 2;
  if (i >= n) return;
  ST(y, i, gelu_tanh(LD(x, i)));
  ST(y, i + 1, gelu_tanh(LD(x, i + 1)));
}
