/* Element-wise kernel: y[i] = EXPR over x0[i], x1[i], … in float.
 *
 * PARAMS   parameters of the inputs: pointer pI and element offset oI each, then scalars sJ
 * SIZES, ROW_OFFSETS   for FLAT 0: the parameters and the code that convert a row number to input offsets aI
 * EXPR     expression in x0…, s0… (FV and float)
 * LOADS    loads xI from pI at FLAT index i (vector) or, when !FLAT, at index oI + row offset + inner
 * LOADS1   the same for the last, partial vector of `lanes` lanes
 * OUT      storage type of y: 0 f32, 1 f16, 2 bf16, 3 i32, 4 u32, 5 a mask
 * FLAT 1:  every input is contiguous with y's shape: one index. n = elements.
 * FLAT 0:  rows of `inner` elements. The row number is split over OUTER dimensions, whose sizes (dD) and strides
 *          (tI_D) are arguments. The macros in LOADS set the stride along a row to 0, 1 or rI.
 * ALIGNED_VECTORS 1: FLAT, and every pointer with its offset is a multiple of VW elements.
 * CHUNKED  1 on CPUs: each work-item owns one contiguous range; 0 on GPUs: a grid-stride loop.
 * IN_PLACE defined: y is also an input, at the same elements; if undefined, y shares no memory with an input.
 * A work-item never touches another item's elements; nothing is accumulated.
 *
 * Design: a grid-stride loop over an expression compiled for it. Axes are merged if all operands have uniform strides along them, the
 * same as in PyTorch's TensorIterator.
 * Ceiling: each operand read or written once, at copy bandwidth. H200, 4096 x 4096 in bf16: 3.3 to 3.6 of 4.8 TB/s with one operand, 3.7
 * with two.
 */
#ifndef EXPR
#define EXPR x0
#define PARAMS __global const float *p0, ulong o0,
#define LOADS FV x0 = IN_V0(p0 + o0, i);
#define LOADS1 LANES(x0, IN_10(p0 + o0, i + k))
#define FLAT 1
#endif
#ifdef IN_PLACE
#define RESTRICT
#else
#define RESTRICT restrict
#endif
#if FLAT
__kernel void elementwise(PARAMS __global OUT_T *RESTRICT y, ulong oy, ulong n) {
  const ulong items = get_global_size(0), id = get_global_id(0);
  y += oy;
#if CHUNKED
  const ulong per = (n + items * VW - 1) / (items * VW) * VW;
  const ulong begin = min(n, id * per), end = min(n, begin + per), step = VW;
#else
  const ulong begin = id * VW, end = n, step = items * VW;
#endif
  ulong i = begin;
#if !CHUNKED
  /* Keep two vectors in flight: on a full device, one per item does not keep the memory busy. */
  for (; i + step + VW <= end; i += step) {
    const ulong at = i;
    FV first, second;
    {
      LOADS
      first = (FV)(EXPR);
    }
    i += step;
    {
      LOADS
      second = (FV)(EXPR);
    }
    OUT_VA(y, at, first);
    OUT_VA(y, i, second);
  }
#endif
  for (; i + VW <= end; i += step) {
    LOADS
    OUT_VA(y, i, (FV)(EXPR));
  }
  if (i < end) {
    const int lanes = (int)(end - i);
    LOADS1
    float part[VW];
    STOREN((FV)(EXPR), part);
    for (int k = 0; k < lanes; k++) OUT_1(y, i + k, part[k]);
  }
}
#else
__kernel void elementwise(PARAMS SIZES __global OUT_T *RESTRICT y, ulong oy, ulong rows, ulong inner) {
  /* Dimension 0 runs along a row, dimension 1 over the rows. */
  FOR_ROWS(row, rows, 1) {
    ROW_OFFSETS
    __global OUT_T *yr = y + oy + row * inner;
    ulong i = get_global_id(0) * VW;
    const ulong step = get_global_size(0) * VW;
    for (; i + VW <= inner; i += step) {
      const int lanes = VW;
      LOADS
      OUT_V(yr, i, (FV)(EXPR));
    }
    if (i < inner) {
      const int lanes = (int)(inner - i);
      LOADS1
      float part[VW];
      STOREN((FV)(EXPR), part);
      for (int k = 0; k < lanes; k++) OUT_1(yr, i + k, part[k]);
    }
  }
}
#endif
