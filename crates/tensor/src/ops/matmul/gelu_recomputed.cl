/* GELU (tanh) of x, with the same bits as the product's epilogue that stored x (matmul_wgmma_sm90, GELU; both call the function in
 * include/gelu_sm90.cl). The backward recomputes it, so that it need not be kept.
 *
 * x, y (n) T, 16 bits. A work-item owns two adjacent elements; n is even, since it is a multiple of 8.
 * Ceiling: 4 bytes per element over the memory bandwidth. H200, in a GPT-2 step: 2.1 of 4.8 TB/s.
 */
__kernel void gelu_recomputed(__global const T *x, __global T *y, ulong n) {
  const ulong i = (ulong)get_global_id(0) * 2;
  if (i >= n) return;
  ST(y, i, gelu_tanh(LD(x, i)));
  ST(y, i + 1, gelu_tanh(LD(x, i + 1)));
}
