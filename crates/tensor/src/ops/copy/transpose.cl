/* transpose: y[b, r, c] = x[b, c, r], a copy of a view whose last axis (c) is strided while another axis (r) is contiguous. Elements are copied
 * as bits of their size, DTYPE 0: 4 bytes, 5: 1, otherwise 2.
 *
 * x starts at element x0, y (contiguous) at y0. r has `rows` elements, 1 apart in x and y_row in y; c has `columns`, x_column apart in x and 1
 * in y. b stands for up to three axes of sizes b0, b1, b2 with strides s0… in x and t0… in y.
 * Tiles and b are counted in 32 bits, or with WIDE 1 in 64 if there are more: GPUs divide 64-bit numbers slowly.
 *
 * GPUs: group (i, j, k) of (32, WG / 32) items moves tile i of the rows and j of the columns of number k of b, and every further tile at the
 * distance of the grid. Tiles go through local memory, so that both sides are accessed in order. A tile has SIDE × SIDE elements. An item issues
 * all its loads before its first store. BATCH 0: b is one.
 *
 * CPUs: item g moves a run of tiles of DOWN × ACROSS elements, down r, so that each column of x is read in order. A tile is transposed into
 * local memory in blocks of 8 × 8 that shuffle in registers, and is stored by whole rows. Rows are far apart in x and in y, often by a power of
 * two, so lines that are accessed twice would be evicted from the cache in between. In local memory, strips as wide as a cache line follow one
 * another, so that the data of one strip fits in the first-level cache.
 *
 * STREAMING: stores bypass the caches (streaming), for results larger than the caches. y and its rows start at multiples of 8 elements (1), or
 * of 64 bytes (2).
 *
 * Design: GPUs: a padded tile in local memory (Ruetsch and Micikevicius 2009, "Optimizing Matrix Transpose in CUDA"). CPUs: blocks of 8 x 8 that
 * interleave vectors in registers, within a tile for the first-level cache.
 * Ceiling: a copy of the same bytes. H200, 4096 x 4096: f32 41.7 us and bf16 29.0, where x * 2 takes 36.4 and 27.0.
 */
#ifndef TILE
#define TILE 32
#endif
#ifndef TALL
#define TALL 64
#endif
#ifndef STREAMING
#define STREAMING 0
#endif
#ifndef WIDE
#define WIDE 0
#endif
#ifndef BATCH
#define BATCH 1
#endif
#if WIDE
typedef ulong N;
#else
typedef uint N;
#endif
#if DTYPE == 0
typedef uint W;
typedef uint8 W8;
#elif DTYPE == 5
typedef uchar W;
typedef uchar8 W8;
#else
typedef ushort W;
typedef ushort8 W8;
#endif
#if WG == 1
/* Rows with the same number of bytes in y for short elements. */
#define DOWN TALL
#define ACROSS (TILE * 4 / sizeof(W))
#define LINE (64 / sizeof(W))
#else
#define SIDE 64
#define STEP (WG / 32)
/* Distance between columns of a tile in local memory: they start on adjacent banks of 4 bytes. */
#define PITCH (SIDE + 4 / (int)sizeof(W))
#endif

#if WG == 1
/* Each pair of macros interleaves two vectors by 1, then by 2 elements, within 128 bits, where hardware shuffles are free. Which elements are in
 * the lower and upper half after two rounds therefore depends on the element size. */
#if DTYPE == 0
#define LOW1(a, b) (W8)(a.s0, b.s0, a.s1, b.s1, a.s4, b.s4, a.s5, b.s5)
#define HIGH1(a, b) (W8)(a.s2, b.s2, a.s3, b.s3, a.s6, b.s6, a.s7, b.s7)
#define LOW2(a, b) (W8)(a.s01, b.s01, a.s45, b.s45)
#define HIGH2(a, b) (W8)(a.s23, b.s23, a.s67, b.s67)
#define JOIN(a, b) (W8)(a, b)
#define W8_PAIRS W8
#define LOWER_ROW(i) (i)
#define UPPER_ROW(i) (i + 4)
#else
#define LOW1(a, b) (W8)(a.s0, b.s0, a.s1, b.s1, a.s2, b.s2, a.s3, b.s3)
#define HIGH1(a, b) (W8)(a.s4, b.s4, a.s5, b.s5, a.s6, b.s6, a.s7, b.s7)
#define LOWER_ROW(i) (2 * i)
#define UPPER_ROW(i) (2 * i + 1)
#if DTYPE == 5
#define LOW2(a, b) (ushort4)(as_ushort4(a).s0, as_ushort4(b).s0, as_ushort4(a).s1, as_ushort4(b).s1)
#define HIGH2(a, b) (ushort4)(as_ushort4(a).s2, as_ushort4(b).s2, as_ushort4(a).s3, as_ushort4(b).s3)
#define JOIN(a, b) as_uchar8((ushort4)(a, b))
#define W8_PAIRS ushort4
#else
/* Stored as words, because LLVM 15 stores pairs of short elements one by one. */
#define LOW2(a, b) (uint4)(as_uint4(a).s0, as_uint4(b).s0, as_uint4(a).s1, as_uint4(b).s1)
#define HIGH2(a, b) (uint4)(as_uint4(a).s2, as_uint4(b).s2, as_uint4(a).s3, as_uint4(b).s3)
#define JOIN(a, b) as_ushort8((uint4)(a, b))
#define W8_PAIRS uint4
#endif
#endif

/* Stores one line to y. PoCL's vstore of short elements would store them one by one. */
typedef uint16 __attribute__((aligned(sizeof(W)))) LINE_ANY;
#define PUT_LINE(from, p) (*(__global LINE_ANY *)(p) = *(__local const uint16 *)(from))
#ifdef __has_builtin
#if STREAMING && __has_builtin(__builtin_nontemporal_store)
#undef PUT_LINE
#if STREAMING == 2
#define PUT_LINE(from, p) __builtin_nontemporal_store(*(__local const uint16 *)(from), (__global uint16 *)(p))
#else
#define PUT_LINE(from, p)                                                                                            \
  for (uint k = 0; k < LINE; k += 8)                                                                                 \
    __builtin_nontemporal_store(*(__local const W8 *)((from) + k), (__global W8 *)((p) + k))
#endif
#endif
#endif

/* Transposes an 8 × 8 block of x, whose columns are `step` apart, to 8 rows of a strip. */
static inline void turn8(__global const W *x, ulong step, __local W *y) {
  const W8 a0 = vload8(0, x), a1 = vload8(0, x + step), a2 = vload8(0, x + 2 * step), a3 = vload8(0, x + 3 * step);
  const W8 a4 = vload8(0, x + 4 * step), a5 = vload8(0, x + 5 * step), a6 = vload8(0, x + 6 * step);
  const W8 a7 = vload8(0, x + 7 * step);
  const W8 p0 = LOW1(a0, a1), p1 = HIGH1(a0, a1), p2 = LOW1(a2, a3), p3 = HIGH1(a2, a3);
  const W8 p4 = LOW1(a4, a5), p5 = HIGH1(a4, a5), p6 = LOW1(a6, a7), p7 = HIGH1(a6, a7);
  const W8_PAIRS q0 = LOW2(p0, p2), q1 = HIGH2(p0, p2), q2 = LOW2(p1, p3), q3 = HIGH2(p1, p3);
  const W8_PAIRS q4 = LOW2(p4, p6), q5 = HIGH2(p4, p6), q6 = LOW2(p5, p7), q7 = HIGH2(p5, p7);
  *(__local W8 *)(y + LOWER_ROW(0) * LINE) = JOIN(q0.lo, q4.lo);
  *(__local W8 *)(y + LOWER_ROW(1) * LINE) = JOIN(q1.lo, q5.lo);
  *(__local W8 *)(y + LOWER_ROW(2) * LINE) = JOIN(q2.lo, q6.lo);
  *(__local W8 *)(y + LOWER_ROW(3) * LINE) = JOIN(q3.lo, q7.lo);
  *(__local W8 *)(y + UPPER_ROW(0) * LINE) = JOIN(q0.hi, q4.hi);
  *(__local W8 *)(y + UPPER_ROW(1) * LINE) = JOIN(q1.hi, q5.hi);
  *(__local W8 *)(y + UPPER_ROW(2) * LINE) = JOIN(q2.hi, q6.hi);
  *(__local W8 *)(y + UPPER_ROW(3) * LINE) = JOIN(q3.hi, q7.hi);
}

/* Prefetches the line at p for writing: stores that stay in the caches read it first. */
#if !STREAMING && defined(__clang__) && !defined(NO_PREFETCH)
#define CLAIM(p) __builtin_prefetch((const void *)(size_t)(p), 1)
#else
#define CLAIM(p)
#endif

/* Position of column c of row r in a tile. */
#define AT(r, c) ((c) / LINE * (LINE * DOWN) + (r) * LINE + (c) % LINE)

/* Transposes a tile of at most DOWN rows and ACROSS columns; `left` rows of x follow its first row. */
static inline void turn(__global const W *from, ulong step, __global W *to, ulong row, uint height, uint width, ulong left,
                        __local W *tile) {
  const uint full_height = height / 8 * 8, full_width = width / 8 * 8, lines = width / LINE * LINE;
  for (uint r = 0; r < height; r++) {
    for (uint c = 0; c < width; c += LINE) CLAIM(to + r * row + c);
  }
  for (uint c = 0; c < full_width; c += 8) {
    __global const W *x = from + c * step;
    for (uint r = 0; r < full_height; r += 8) {
      if (r % LINE == 0 && r + DOWN < left) {
        for (uint i = 0; i < 8; i++) AHEAD(x + i * step + r + DOWN);
      }
      turn8(x + r, step, tile + AT(r, c));
    }
  }
  for (uint r = 0; r < height; r++) {
    for (uint c = r < full_height ? full_width : 0; c < width; c++) tile[AT(r, c)] = from[c * step + r];
  }
  for (uint r = 0; r < height; r++) {
    for (uint c = 0; c < lines; c += LINE) PUT_LINE(tile + AT(r, c), to + r * row + c);
    for (uint c = lines; c < width; c++) to[r * row + c] = tile[AT(r, c)];
  }
}
#endif

#if WG > 1
/* Transposes a tile of `height` rows and `width` columns. */
static inline void turn(__global const W *from, ulong step, __global W *to, ulong row, uint height, uint width,
                        __local W *tile) {
  const uint x = get_local_id(0), y = get_local_id(1);
  W part[SIDE / STEP][SIDE / 32];
  UNROLL for (uint i = 0; i < SIDE / STEP; i++) UNROLL for (uint j = 0; j < SIDE / 32; j++) {
    const uint c = y + i * STEP, r = x + j * 32;
    if (c < width && r < height) part[i][j] = from[c * step + r];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  UNROLL for (uint i = 0; i < SIDE / STEP; i++) UNROLL for (uint j = 0; j < SIDE / 32; j++) {
    const uint c = y + i * STEP, r = x + j * 32;
    if (c < width && r < height) tile[c * PITCH + r] = part[i][j];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  UNROLL for (uint i = 0; i < SIDE / STEP; i++) UNROLL for (uint j = 0; j < SIDE / 32; j++) {
    const uint r = y + i * STEP, c = x + j * 32;
    if (r < height && c < width) to[r * row + c] = tile[c * PITCH + r];
  }
}
#endif

__kernel void transpose(__global const W *restrict x, ulong x0, __global W *restrict y, ulong y0, ulong rows, ulong columns,
                        ulong y_row, ulong x_column, ulong b0, ulong b1, ulong b2, ulong s0, ulong s1, ulong s2, ulong t0,
                        ulong t1, ulong t2) {
  x += x0;
  y += y0;
#if WG == 1
  __local W transposed[DOWN * ACROSS] __attribute__((aligned(64)));
  const N down = (N)((rows + DOWN - 1) / DOWN), across = (N)((columns + ACROSS - 1) / ACROSS);
  const N tiles = (N)(b0 * b1 * b2) * down * across, groups = (N)get_num_groups(0), group = (N)get_group_id(0);
  /* The first `more` groups have one tile more than the others. */
  const N per = tiles / groups, more = tiles % groups;
  const N first = group * per + min(group, more), last = first + per + (group < more);
  for (N tile = first; tile < last; tile++) {
    const N slab = tile / down, b = slab / across, outer = b / (N)b2;
    const ulong r0 = (ulong)(tile % down) * DOWN, c0 = (ulong)(slab % across) * ACROSS;
    const ulong i0 = outer / (N)b1, i1 = outer % (N)b1, i2 = b % (N)b2;
    const uint height = (uint)min((ulong)DOWN, rows - r0), width = (uint)min((ulong)ACROSS, columns - c0);
    turn(x + i0 * s0 + i1 * s1 + i2 * s2 + r0 + c0 * x_column, x_column, y + i0 * t0 + i1 * t1 + i2 * t2 + r0 * y_row + c0,
         y_row, height, width, rows - r0, transposed);
  }
#else
  __local W transposed[SIDE * PITCH];
  for (N b = (N)get_group_id(2); b < (N)(b0 * b1 * b2); b += (N)get_num_groups(2)) {
#if BATCH
    const N outer = b / (N)b2;
    const ulong i0 = outer / (N)b1, i1 = outer % (N)b1, i2 = b % (N)b2;
    __global const W *from = x + i0 * s0 + i1 * s1 + i2 * s2;
    __global W *to = y + i0 * t0 + i1 * t1 + i2 * t2;
#else
    __global const W *from = x;
    __global W *to = y;
#endif
    for (ulong c0 = get_group_id(1) * SIDE; c0 < columns; c0 += get_num_groups(1) * SIDE)
      for (ulong r0 = get_group_id(0) * SIDE; r0 < rows; r0 += get_num_groups(0) * SIDE)
        turn(from + r0 + c0 * x_column, x_column, to + r0 * y_row + c0, y_row, (uint)min((ulong)SIDE, rows - r0),
             (uint)min((ulong)SIDE, columns - c0), transposed);
  }
#endif
}
