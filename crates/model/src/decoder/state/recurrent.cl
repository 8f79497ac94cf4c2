/* Values of a recurrent state (N elements each): the last KEPT values of a text, and those at the ends of its pages of PAGE tokens. The value
 * after token p of a text is slot p % KEPT of page pages[p / PAGE]. So a later token of the page overwrites one that is KEPT tokens older.
 *
 * recall  value before each text's new tokens → y (B, N), zeros at the start of a text and for missing pages
 * keep    x (B, TOKENS, N), values after its new tokens → their slots
 * values (.., KEPT, N) T; position uint (B), or one for all texts without EACH: tokens before the new ones; pages uint (B, M)
 *
 * Defines: KEPT, PAGE, TOKENS, EACH, DTYPE. Tuned: WG.
 * Ceiling: memory bandwidth.
 */
#ifndef KEPT
#define KEPT 9
#endif
#ifndef PAGE
#define PAGE 16
#endif
#ifndef TOKENS
#define TOKENS 1
#endif
#ifndef EACH
#define EACH 0
#endif
#define PLACE_OF(p) ((ulong)pages[pages_off + text * m + (p) / PAGE] * KEPT + (p) % KEPT)

__kernel void recall(__global const T *values, __global const uint *restrict position, __global const uint *restrict pages, __global T *restrict y,
                     ulong values_off, uint position_off, uint pages_off, uint m, ulong n, ulong count) {
  const ulong i = get_global_id(0);
  if (i >= count) return;
  const uint text = (uint)(i / n), before = position[position_off + (EACH ? text : 0)];
  float v = 0.0f;
  if (before > 0 && (before - 1) / PAGE < m) v = LD(values, values_off + PLACE_OF(before - 1) * n + i % n);
  ST(y, i, v);
}

__kernel void keep(__global const T *restrict x, __global T *values, __global const uint *restrict position, __global const uint *restrict pages,
                   ulong values_off, uint position_off, uint pages_off, uint m, ulong n, ulong count) {
  const ulong i = get_global_id(0);
  if (i >= count) return;
  const ulong row = i / n;
  const uint text = (uint)(row / TOKENS), t = (uint)(row % TOKENS);
  const uint p = position[position_off + (EACH ? text : 0)] + t;
  /* A later token of this step overwrites the slot. */
  if (t + KEPT < TOKENS && (p + KEPT) / PAGE == p / PAGE) return;
  if (p / PAGE < m) ST(values, values_off + PLACE_OF(p) * n + i % n, LD(x, i));
}
