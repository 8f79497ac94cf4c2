/* cumsum: sums of a row up to and including each element.
 *
 * x, y (R, N) T: y[r, i] = x[r, 0] + .. + x[r, i], or from the end with REVERSE. A sum is a pair of floats, the sum and its rounding error
 * (TwoSum, Knuth 1969; Ogita, Rump and Oishi 2005), so its error does not grow with N; the two are added when they are stored. Work-groups
 * process rows in turn, WG adjacent elements at a time: a scan of these in local memory (Hillis and Steele 1986), added to the sum of the
 * previous ones.
 * Defines: REVERSE. Tuned: WG, a power of two. Local memory: 4 WG words.
 * Ceiling: x read and y written once.
 */
#ifndef REVERSE
#define REVERSE 0
#endif
#define AT(i) (REVERSE ? n - 1 - (i) : (i))

/* Adds a + b. The rounding error of a NaN or an infinite sum counts as 0. */
static inline float2 added(float2 a, float2 b) {
  const float sum = a.x + b.x, of_b = sum - a.x;
  const float lost = (a.x - (sum - of_b)) + (b.x - of_b);
  return (float2)(sum, a.y + b.y + (lost == lost ? lost : 0.0f));
}

__kernel void cumsum(__global const T *restrict x, __global T *restrict y, ulong rows, ulong n) {
#if WG == 1
  FOR_ROWS(r, rows, 0) {
    float2 sum = (float2)(0.0f);
    for (ulong i = 0; i < n; i++) {
      sum = added(sum, (float2)(LD(x, r * n + AT(i)), 0.0f));
      ST(y, r * n + AT(i), sum.x + sum.y);
    }
  }
#else
  __local float2 sums[2][WG];
  const uint l = get_local_id(0);
  for (ulong r = get_group_id(0); r < rows; r += get_num_groups(0)) {
    float2 before = (float2)(0.0f);
    for (ulong first = 0; first < n; first += WG) {
      const ulong i = first + l;
      float2 sum = (float2)(i < n ? LD(x, r * n + AT(i)) : 0.0f, 0.0f);
      int half_ = 0;
      for (uint away = 1; away < WG; away *= 2) {
        sums[half_][l] = sum;
        barrier(CLK_LOCAL_MEM_FENCE);
        if (l >= away) sum = added(sums[half_][l - away], sum);
        half_ = !half_;
      }
      sums[half_][l] = sum;
      barrier(CLK_LOCAL_MEM_FENCE);
      if (i < n) {
        const float2 all = added(before, sum);
        ST(y, r * n + AT(i), all.x + all.y);
      }
      before = added(before, sums[half_][WG - 1]);
      barrier(CLK_LOCAL_MEM_FENCE);
    }
  }
#endif
}
