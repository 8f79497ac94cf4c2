/* Writes rows of keys and values to the pages of one text, and reads them. Row s of the text is row s % PAGE of page pages[s / PAGE].
 *
 * cache_append  x (N, HEADS, D) T, rows x_n apart, heads x_h → rows `first` to first + N - 1 of the text; rounded to 8 bits with Q8
 * cache_gather  those rows → y (N, HEADS, D) T, dense
 * cache  (P, PAGE, HEADS, D) T, or with Q8 (P, PAGE, HEADS, words) uint (q8_row.cl); at cache_off, pages cache_p apart, rows cache_s, heads cache_h
 * pages  uint at pages_off
 * Items of dimension 0 process every get_global_size(0)-th vector of a head's row (cache_append with Q8: group of 32 elements), those of
 * dimension 1 heads of rows.
 *
 * Defines: D, HEADS, PAGE, Q8, DTYPE. Tuned: WG, VW.
 * Ceiling: memory bandwidth.
 */
#ifndef D
#define D 64
#endif
#ifndef HEADS
#define HEADS 2
#endif
#ifndef PAGE
#define PAGE 16
#endif
#ifndef Q8
#define Q8 0
#endif
#if Q8
typedef uint C;
#else
typedef T C;
#endif

#define ARGS ulong cache_off, ulong cache_p, ulong cache_s, ulong cache_h, uint pages_off, uint first, ulong rows
#define PLACE_OF(row, s, h) \
  const uint s = first + (uint)((row) / HEADS), h = (uint)((row) % HEADS); \
  const ulong place = cache_off + pages[pages_off + s / PAGE] * cache_p + s % PAGE * cache_s + h * cache_h

__kernel void cache_append(__global const T *restrict x, __global C *cache, __global const uint *restrict pages, ulong x_off, ulong x_n, ulong x_h, ARGS) {
  FOR_ROWS(row, rows, 1) {
    PLACE_OF(row, s, h);
    __global const T *from = x + x_off + row / HEADS * x_n + h * x_h;
    __global C *to = cache + place;
#if Q8
    for (uint g = get_global_id(0); g < (D + 31) / 32; g += get_global_size(0)) {
      const uint end = min(D, (int)(32 * g + 32));
      float most = 0.0f;
      for (uint d = 32 * g; d < end; ++d) most = q8_most(most, LD(from, d));
      const ushort bits = q8_scale_of(most);
      const float by = vload_half(0, (const half *)&bits);
      for (uint w = 8 * g; 4 * w < end; ++w) {
        uint word = 0;
        for (uint d = 4 * w; d < min(4 * w + 4, end); ++d) word |= (uint)(uchar)q8_of(LD(from, d), by) << 8 * (d - 4 * w);
        to[w] = word;
      }
      ((__global ushort *)to)[2 * Q8_WORDS + g] = bits;
    }
#else
    ulong i = get_global_id(0) * VW;
    const ulong step = get_global_size(0) * VW;
    for (; i + VW <= D; i += step) STV(to, i, LDV(from, i));
    for (; i < D; i += step) store_part(to + i, load_part(from + i, D - i), D - i);
#endif
  }
}

__kernel void cache_gather(__global const C *restrict cache, __global const uint *restrict pages, __global T *restrict y, ARGS) {
  FOR_ROWS(row, rows, 1) {
    PLACE_OF(row, s, h);
    __global const C *from = cache + place;
    __global T *to = y + row * D;
#if Q8
    __global const char *bytes = (__global const char *)from;
    for (uint d = get_global_id(0); d < D; d += get_global_size(0)) ST(to, d, (float)bytes[d] * q8_scale(from, d / 32));
#else
    ulong i = get_global_id(0) * VW;
    const ulong step = get_global_size(0) * VW;
    for (; i + VW <= D; i += step) STV(to, i, LDV(from, i));
    for (; i < D; i += step) store_part(to + i, load_part(from + i, D - i), D - i);
#endif
  }
}
