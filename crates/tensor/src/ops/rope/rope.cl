/* Rotary position embedding (Su et al. 2021) of adjacent heads, with pairs half a head apart (GPT-NeoX, Llama in Hugging Face's layout):
 *   y[i] = x[i] cos[i] - x[i + R/2] sin[i],   y[i + R/2] = x[i + R/2] cos[i] + x[i] sin[i],   0 <= i < R/2,
 * for each of the first HEADS heads of D elements in a row; the other elements are copied. The backward is the same kernel over dy
 * with `sign` -1.
 *
 * x, y      (rows, N) T: row r is token r % t_len of its sequence
 * cosines   (t_len, R/2) f32, and sines
 * HEADS, D, HALF (R/2), N: defines. VW divides HALF, D and N.
 * Items of dimension 0 process every get_global_size(0)-th vector of a row, those of dimension 1 rows. One work-item writes each element.
 *
 * Ceiling: bandwidth of a copy, with x read and y written once.
 */
#ifndef HEADS
#define HEADS 1
#define D 64
#define HALF 32
#define N 64
#endif

/* Copies elements `from` to `to` - 1 of a row. */
#define COPY_PART(from, to, at, step) \
  for (uint i = (from) + (at); i < (to); i += (step)) STV(yr, i, LDV(xr, i));

__kernel void rope(__global const T *restrict x, __global const float *restrict cosines, __global const float *restrict sines,
                   __global T *restrict y, ulong rows, ulong t_len, float sign) {
  const uint at = get_global_id(0) * VW, step = get_global_size(0) * VW;
  FOR_ROWS(row, rows, 1) {
    __global const T *xr = x + row * N;
    __global T *yr = y + row * N;
    __global const float *cr = cosines + row % t_len * HALF, *sr = sines + row % t_len * HALF;
    for (uint e = at; e < HEADS * HALF; e += step) {
      const uint head = e / HALF, i = e - head * HALF, low = head * D + i;
      const FV a = LDV(xr, low), b = LDV(xr, low + HALF), c = LDV_F32(cr + i), s = sign * LDV_F32(sr + i);
      STV(yr, low, a * c - b * s);
      STV(yr, low + HALF, b * c + a * s);
    }
#if D > 2 * HALF
    for (uint e = at; e < HEADS * (D - 2 * HALF); e += step) {
      const uint head = e / (D - 2 * HALF), i = head * D + 2 * HALF + (e - head * (D - 2 * HALF));
      STV(yr, i, LDV(xr, i));
    }
#endif
#if N > HEADS * D
    COPY_PART(HEADS * D, N, at, step)
#endif
  }
}
