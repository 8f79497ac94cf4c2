/* Attention, step 4 of 6: o = softmax(q kT / sqrt(D)) v for each head, with the scores stored in memory.
 *
 * Changed    the problem: the softmax of steps 1 to 3 is between two matrix products. Three kernels run one after the other:
 *            scores s = scale * q kT; the softmax of each of their rows, in place; o = s v. The products are those of step 3 of the
 *            matmul ladder, and the softmax is that of step 3 here.
 * Bound by   local memory within the products, as in the ladder; and by memory for the (H,T,T) scores, which are written twice and
 *            read three times. With 2048 tokens and a head size of 64, they are 16 times as large as q, k, v and o together. If the
 *            context is long enough, they do not fit on the device at all.
 *
 * Arguments  q, k, v, o (H,T,D): f32, contiguous; s (H,T,T): f32; scale: 1 / sqrt(D); t: tokens, at least 1
 * Defines    D: head size, at least 1
 * Launch     scores  groups (ceil(t / 16), ceil(t / 16), H) of 16 by 16 items
 *            softmax groups (t, H) of 128 items
 *            output  groups (ceil(D / 16), ceil(t / 16), H) of 16 by 16 items
 */
#ifndef D
#define D 64
#endif
#define TILE 16
#define ITEMS 128

__kernel __attribute__((reqd_work_group_size(TILE, TILE, 1))) void scores(__global const float *q, __global const float *k,
                                                                          __global float *s, uint t, float scale) {
  __local float tq[TILE][TILE + 1], tk[TILE][TILE + 1]; /* one column more, so that a column of tk is in all banks */
  const uint x = get_local_id(0), y = get_local_id(1), key = get_global_id(0), query = get_global_id(1);
  const size_t head = get_group_id(2);
  q += head * t * D;
  k += head * t * D;
  float sum = 0.0f;
  for (uint d = 0; d < D; d += TILE) {
    const uint own_key = get_group_id(0) * TILE + y;
    tq[y][x] = query < t && d + x < D ? q[(size_t)query * D + d + x] : 0.0f;
    tk[y][x] = own_key < t && d + x < D ? k[(size_t)own_key * D + d + x] : 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint l = 0; l < TILE; l++) sum = fma(tq[y][l], tk[x][l], sum);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (query < t && key < t) s[(head * t + query) * t + key] = scale * sum;
}

static inline float2 joined(float2 a, float2 b) {
  const float top = fmax(a.x, b.x);
  return (float2)(top, a.y * exp(a.x - top) + b.y * exp(b.x - top));
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void softmax(__global float *s, uint t) {
  __local float2 part[ITEMS];
  const uint item = get_local_id(0);
  s += (get_group_id(1) * (size_t)t + get_group_id(0)) * t;
  float2 own = (float2)(-FLT_MAX, 0.0f);
  for (uint i = item; i < t; i += ITEMS) own = joined(own, (float2)(s[i], 1.0f));
  part[item] = own;
  for (uint half_of = ITEMS / 2; half_of > 0; half_of /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < half_of) part[item] = joined(part[item], part[item + half_of]);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  const float top = part[0].x, by = 1.0f / part[0].y;
  for (uint i = item; i < t; i += ITEMS) s[i] = exp(s[i] - top) * by;
}

__kernel __attribute__((reqd_work_group_size(TILE, TILE, 1))) void output(__global const float *s, __global const float *v,
                                                                          __global float *o, uint t) {
  __local float ts[TILE][TILE], tv[TILE][TILE];
  const uint x = get_local_id(0), y = get_local_id(1), column = get_global_id(0), query = get_global_id(1);
  const size_t head = get_group_id(2);
  s += head * t * t;
  v += head * t * D;
  float sum = 0.0f;
  for (uint key = 0; key < t; key += TILE) {
    ts[y][x] = query < t && key + x < t ? s[(size_t)query * t + key + x] : 0.0f;
    tv[y][x] = key + y < t && column < D ? v[(size_t)(key + y) * D + column] : 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint l = 0; l < TILE; l++) sum = fma(ts[y][l], tv[l][x], sum);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (query < t && column < D) o[(head * t + query) * D + column] = sum;
}
