/* cumsum: sums of a row up to and with each element.
 *
 * x, y (R, N) T: y[r, i] = x[r, 0] + .. + x[r, i], from the end on with REVERSE. Sums are f32 and rounded once.
 * Work-groups take rows in turn, WG neighbours of a row at a time: a scan of these in local memory (Hillis and Steele 1986) behind the sum of
 * those before. Defines: REVERSE. Tuned: WG, a power of two. Local memory: 2 WG words.
 * Ceiling: x read and y written once.
 */
#ifndef REVERSE
#define REVERSE 0
#endif
#define AT(i) (REVERSE ? n - 1 - (i) : (i))

__kernel void cumsum(__global const T *restrict x, __global T *restrict y, ulong rows, ulong n) {
#if WG == 1
  FOR_ROWS(r, rows, 0) {
    float sum = 0.0f;
    for (ulong i = 0; i < n; i++) {
      sum += LD(x, r * n + AT(i));
      ST(y, r * n + AT(i), sum);
    }
  }
#else
  __local float sums[2][WG];
  const uint l = get_local_id(0);
  for (ulong r = get_group_id(0); r < rows; r += get_num_groups(0)) {
    float before = 0.0f;
    for (ulong first = 0; first < n; first += WG) {
      const ulong i = first + l;
      float sum = i < n ? LD(x, r * n + AT(i)) : 0.0f;
      int half_ = 0;
      for (uint away = 1; away < WG; away *= 2) {
        sums[half_][l] = sum;
        barrier(CLK_LOCAL_MEM_FENCE);
        if (l >= away) sum += sums[half_][l - away];
        half_ = !half_;
      }
      sums[half_][l] = sum;
      barrier(CLK_LOCAL_MEM_FENCE);
      if (i < n) ST(y, r * n + AT(i), before + sum);
      before += sums[half_][WG - 1];
      barrier(CLK_LOCAL_MEM_FENCE);
    }
  }
#endif
}
