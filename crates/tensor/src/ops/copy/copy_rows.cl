/* copy_rows: y[b, k] = x[b, k], a copy of a view whose last axis (k) is contiguous and whose other axes (b) have another order or gaps. Elements
 * are copied as bits of their size, DTYPE 0: 4 bytes, 5: 1, otherwise 2.
 *
 * x starts at element x0, y at y0. k has `length` elements. b stands for up to four axes of sizes n0 … n3, the last of which changes fastest,
 * with strides s0 … in x and t0 … in y. They are in order of decreasing strides in x, so x is read in order and rows are written to any position
 * in y. `rows` is n0 n1 n2 n3.
 * Rows are counted in 32 bits, or with WIDE 1 in 64 if there are more: GPUs divide 64-bit numbers slowly.
 * GPUs: item (i, j) copies pieces i, i + X, … of rows j, j + Y, …. A piece is 16 bytes with WHOLE 1, which states that x, y and their rows start
 * at multiples of 16 bytes and have a multiple of 16 bytes; otherwise it is one element.
 *
 * CPUs: item g copies a run of rows, a cache line at a time. STREAMING 1: stores bypass the caches (streaming), for results larger than the
 * caches; y and its rows then start at multiples of 64 bytes.
 *
 * Design: axes sorted by decreasing strides and merged, as PyTorch's TensorIterator does, then coalesced copies of rows.
 * Ceiling: a copy of the same bytes. H200: B,T,H,D to B,H,T,D of 64 MB 36.6 us, x * 2 of the same size 36.4.
 */
#ifndef STREAMING
#define STREAMING 0
#endif
#ifndef WIDE
#define WIDE 0
#endif
#ifndef WHOLE
#define WHOLE 0
#endif
#if WIDE
typedef ulong N;
#else
typedef uint N;
#endif
#if DTYPE == 0
typedef uint W;
#elif DTYPE == 5
typedef uchar W;
#else
typedef ushort W;
#endif

#if WG == 1
#define LINE (64 / sizeof(W))
typedef uint16 __attribute__((aligned(sizeof(W)))) LINE_ANY;
#define PUT_LINE(v, p) (*(__global LINE_ANY *)(p) = (v))
#ifdef __has_builtin
#if STREAMING && __has_builtin(__builtin_nontemporal_store)
#undef PUT_LINE
#define PUT_LINE(v, p) __builtin_nontemporal_store((v), (__global uint16 *)(p))
#endif
#endif
#endif

__kernel void copy_rows(__global const W *restrict x, ulong x0, __global W *restrict y, ulong y0, ulong length, ulong rows,
                        ulong n0, ulong n1, ulong n2, ulong n3, ulong s0, ulong s1, ulong s2, ulong s3, ulong t0, ulong t1,
                        ulong t2, ulong t3) {
#if WG == 1
  const ulong per = (rows + get_num_groups(0) - 1) / get_num_groups(0), begin = min(rows, get_group_id(0) * per);
  const ulong end = min(rows, begin + per);
  ulong i3 = begin % n3, i2 = begin / n3 % n2, i1 = begin / n3 / n2 % n1, i0 = begin / n3 / n2 / n1;
  /* Copies the remaining rows of the last axis at a time, so that no division is needed for each row. */
  for (ulong row = begin, here; row < end; row += here) {
    here = min(n3 - i3, end - row);
    __global const W *from = x + x0 + i0 * s0 + i1 * s1 + i2 * s2 + i3 * s3;
    __global W *to = y + y0 + i0 * t0 + i1 * t1 + i2 * t2 + i3 * t3;
    for (ulong r = 0; r < here; r++, from += s3, to += t3) {
      ulong k = 0;
      for (; k + LINE <= length; k += LINE) PUT_LINE(*(__global const LINE_ANY *)(from + k), to + k);
      for (; k < length; k++) to[k] = from[k];
    }
    i3 = 0;
    if (++i2 == n2) {
      i2 = 0;
      if (++i1 == n1) i1 = 0, i0++;
    }
  }
#else
#if WHOLE
  typedef uint4 V;
#else
  typedef W V;
#endif
  const ulong pieces = length * sizeof(W) / sizeof(V);
  for (N row = (N)get_global_id(1); row < (N)rows; row += (N)get_global_size(1)) {
    const N q3 = row / (N)n3, q2 = q3 / (N)n2, i0 = q2 / (N)n1;
    const ulong i3 = row - q3 * (N)n3, i2 = q3 - q2 * (N)n2, i1 = q2 - i0 * (N)n1;
    __global const V *from = (__global const V *)(x + x0 + i0 * s0 + i1 * s1 + i2 * s2 + i3 * s3);
    __global V *to = (__global V *)(y + y0 + i0 * t0 + i1 * t1 + i2 * t2 + i3 * t3);
    for (ulong k = get_global_id(0); k < pieces; k += get_global_size(0)) to[k] = from[k];
  }
#endif
}
