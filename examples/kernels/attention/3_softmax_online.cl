/* Attention, step 3 of 6: online softmax (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
 *
 * Changed    Maximum and sum come from one pass. A pair (m, s) represents the elements so far: m is their maximum and s the sum of
 *            exp(x - m). Another element x changes it to (m', s exp(m - m') + exp(x - m')) with m' = max(m, x). Two pairs are
 *            combined in the same way, so the reduction tree combines pairs.
 * Why        The row is read twice instead of three times, and reduced once instead of twice. In addition, a sum can be kept before its
 *            maximum is known: this lets steps 5 and 6 compute softmax and product in one pass.
 * Bound by   memory: one read and one write per element remain, and another read, from a cache if the row fits.
 *
 * Rescaling costs an exponential per element; here four elements share one.
 *
 * Arguments  x, y (R,N): f32, row-major; rows, n: their sizes, at least 1
 * Defines    none
 * Launch     groups (rows) of 128 items
 */
#define ITEMS 128

/* Combines two pairs. The empty pair is (-FLT_MAX, 0). */
static inline float2 joined(float2 a, float2 b) {
  const float top = fmax(a.x, b.x);
  return (float2)(top, a.y * exp(a.x - top) + b.y * exp(b.x - top));
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void softmax(__global const float *x, __global float *y, uint rows,
                                                                         uint n) {
  __local float2 part[ITEMS];
  const uint item = get_local_id(0);
  x += get_group_id(0) * (size_t)n;
  y += get_group_id(0) * (size_t)n;

  float2 own = (float2)(-FLT_MAX, 0.0f);
  uint i = item;
  for (; i + 3 * ITEMS < n; i += 4 * ITEMS) {
    const float4 v = (float4)(x[i], x[i + ITEMS], x[i + 2 * ITEMS], x[i + 3 * ITEMS]);
    const float top = fmax(fmax(fmax(v.x, v.y), fmax(v.z, v.w)), own.x);
    const float4 e = exp(v - (float4)(top));
    own = (float2)(top, own.y * exp(own.x - top) + ((e.x + e.y) + (e.z + e.w)));
  }
  for (; i < n; i += ITEMS) own = joined(own, (float2)(x[i], 1.0f));

  part[item] = own;
  for (uint half_of = ITEMS / 2; half_of > 0; half_of /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < half_of) part[item] = joined(part[item], part[item + half_of]);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  const float top = part[0].x, by = 1.0f / part[0].y;
  for (i = item; i < n; i += ITEMS) y[i] = exp(x[i] - top) * by;
}
