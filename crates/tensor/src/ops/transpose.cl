/* transpose: y[b, r, c] = x[b, c, r]: a copy of a view whose last axis (c) is strided and where another (r) has neighbours for
 * neighbours. Elements move as bits of their size, DTYPE 0: 4 bytes, else 2.
 *
 * x starts at element x0, y (contiguous) at y0. r has `rows` elements, 1 apart in x and y_row in y; c has `columns`, x_column
 * apart in x and 1 in y. b stands for up to three axes of sizes b0, b1, b2 with strides s0… in x and t0… in y.
 * GPUs: a group of (32, WG / 32) items moves a tile of TILE × TILE through local memory, so that both sides are walked in order.
 * CPUs: item g moves a run of tiles of ROWS × TILE, ROWS being a cache line of x; the run goes down r, so each column of x is
 * read in order and TILE columns at once. Blocks of 8 × 8 turn in registers. PAST 1: stores go past the caches, for results
 * larger than they are; y and its rows start at multiples of 8 elements then.
 */
#ifndef TILE
#define TILE 32
#endif
#ifndef PAST
#define PAST 0
#endif
#if DTYPE == 0
typedef uint W;
typedef uint8 W8;
#define ROWS 16
#else
typedef ushort W;
typedef ushort8 W8;
#define ROWS 32
#endif

#if WG == 1
/* Each pair of macros interleaves two vectors by 1, then by 2 elements, within 128 bits, where a hardware vector shuffles at
 * no cost; so what ends up in the lower and upper half after two rounds depends on the size of an element. */
#if DTYPE == 0
#define LOW1(a, b) (W8)(a.s0, b.s0, a.s1, b.s1, a.s4, b.s4, a.s5, b.s5)
#define HIGH1(a, b) (W8)(a.s2, b.s2, a.s3, b.s3, a.s6, b.s6, a.s7, b.s7)
#define LOW2(a, b) (W8)(a.s01, b.s01, a.s45, b.s45)
#define HIGH2(a, b) (W8)(a.s23, b.s23, a.s67, b.s67)
#define LOWER_ROW(i) (i)
#define UPPER_ROW(i) (i + 4)
#else
#define LOW1(a, b) (W8)(a.s0, b.s0, a.s1, b.s1, a.s2, b.s2, a.s3, b.s3)
#define HIGH1(a, b) (W8)(a.s4, b.s4, a.s5, b.s5, a.s6, b.s6, a.s7, b.s7)
#define LOW2(a, b) (W8)(a.s01, b.s01, a.s23, b.s23)
#define HIGH2(a, b) (W8)(a.s45, b.s45, a.s67, b.s67)
#define LOWER_ROW(i) (2 * i)
#define UPPER_ROW(i) (2 * i + 1)
#endif

#define STORE8(v, p) vstore8(v, 0, p)
#if PAST && defined(__has_builtin)
#if __has_builtin(__builtin_nontemporal_store)
#undef STORE8
#define STORE8(v, p) __builtin_nontemporal_store(v, (__global W8 *)(p))
#endif
#endif

static inline void turn8(__global const W *x, ulong step, __global W *y, ulong row) {
  const W8 a0 = vload8(0, x), a1 = vload8(0, x + step), a2 = vload8(0, x + 2 * step), a3 = vload8(0, x + 3 * step);
  const W8 a4 = vload8(0, x + 4 * step), a5 = vload8(0, x + 5 * step), a6 = vload8(0, x + 6 * step);
  const W8 a7 = vload8(0, x + 7 * step);
  const W8 p0 = LOW1(a0, a1), p1 = HIGH1(a0, a1), p2 = LOW1(a2, a3), p3 = HIGH1(a2, a3);
  const W8 p4 = LOW1(a4, a5), p5 = HIGH1(a4, a5), p6 = LOW1(a6, a7), p7 = HIGH1(a6, a7);
  const W8 q0 = LOW2(p0, p2), q1 = HIGH2(p0, p2), q2 = LOW2(p1, p3), q3 = HIGH2(p1, p3);
  const W8 q4 = LOW2(p4, p6), q5 = HIGH2(p4, p6), q6 = LOW2(p5, p7), q7 = HIGH2(p5, p7);
  STORE8((W8)(q0.lo, q4.lo), y + LOWER_ROW(0) * row);
  STORE8((W8)(q1.lo, q5.lo), y + LOWER_ROW(1) * row);
  STORE8((W8)(q2.lo, q6.lo), y + LOWER_ROW(2) * row);
  STORE8((W8)(q3.lo, q7.lo), y + LOWER_ROW(3) * row);
  STORE8((W8)(q0.hi, q4.hi), y + UPPER_ROW(0) * row);
  STORE8((W8)(q1.hi, q5.hi), y + UPPER_ROW(1) * row);
  STORE8((W8)(q2.hi, q6.hi), y + UPPER_ROW(2) * row);
  STORE8((W8)(q3.hi, q7.hi), y + UPPER_ROW(3) * row);
}

static inline void turn(__global const W *from, ulong step, __global W *to, ulong row, ulong height, ulong width) {
  const ulong full_height = height / 8 * 8, full_width = width / 8 * 8;
  for (ulong r = 0; r < full_height; r += 8) {
    for (ulong c = 0; c < full_width; c += 8) turn8(from + c * step + r, step, to + r * row + c, row);
  }
  for (ulong r = 0; r < height; r++) {
    for (ulong c = r < full_height ? full_width : 0; c < width; c++) to[r * row + c] = from[c * step + r];
  }
}
#endif

__kernel void transpose(__global const W *restrict x, ulong x0, __global W *restrict y, ulong y0, ulong rows, ulong columns,
                        ulong y_row, ulong x_column, ulong b0, ulong b1, ulong b2, ulong s0, ulong s1, ulong s2, ulong t0,
                        ulong t1, ulong t2) {
#if WG == 1
  const ulong tall = ROWS;
#else
  const ulong tall = TILE;
  __local W turned[TILE][TILE + 1];
#endif
  const ulong down = (rows + tall - 1) / tall, across = (columns + TILE - 1) / TILE, tiles = b0 * b1 * b2 * down * across;
  const ulong per = (tiles + get_num_groups(0) - 1) / get_num_groups(0);
  const ulong first = get_group_id(0) * per, last = min(tiles, first + per);
  for (ulong tile = first; tile < last; tile++) {
    const ulong r0 = tile % down * tall, c0 = tile / down % across * TILE, b = tile / down / across;
    const ulong i0 = b / b2 / b1, i1 = b / b2 % b1, i2 = b % b2;
    __global const W *from = x + x0 + i0 * s0 + i1 * s1 + i2 * s2 + r0 + c0 * x_column;
    __global W *to = y + y0 + i0 * t0 + i1 * t1 + i2 * t2 + r0 * y_row + c0;
    const ulong height = min(tall, rows - r0), width = min((ulong)TILE, columns - c0);
#if WG == 1
    turn(from, x_column, to, y_row, height, width);
#else
    const ulong l = get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (ulong c = get_local_id(1); c < width; c += get_local_size(1))
      if (l < height) turned[c][l] = from[c * x_column + l];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (ulong r = get_local_id(1); r < height; r += get_local_size(1))
      if (l < width) to[r * y_row + l] = turned[l][r];
#endif
  }
}
