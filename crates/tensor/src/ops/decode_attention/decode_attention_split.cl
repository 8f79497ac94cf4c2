/* One step of attention over a cache, for GPUs (Dao et al. 2023, "Flash-Decoding"); decode_attention_rows.cl has the formula.
 *
 * A group of WG items owns ROWS rows of a key head's list and a share of the keys, and processes WG keys at a time. For scores, each item has
 * one key. For the sum of values, the items form lines of LANES columns, which process the block's keys in turn; the lines' sums are added at
 * the end. Shares are multiples of SHARE keys, so that short contexts are divided too.
 *
 * decode_attention       groups (splits * CHUNKS_OF_ROWS, KH, B). With one share it stores the result, otherwise partial sums; with LAST (NVIDIA
 *                        from sm_70 on) the last group to finish among the shares of its rows adds them
 * decode_attention_join  adds the shares in order: groups (CHUNKS_OF_ROWS, KH, B)
 * tickets   int, with LAST: one for each text, key head and chunk of rows, 0 before and after
 *
 * Defines: those of decode_attention_rows.cl, VEC (4 if four elements of qkv and the cache can be moved at once, otherwise 1), LAST. Tuned: WG.
 *
 * Ceiling: memory bandwidth, with keys and values read once.
 */
#ifndef VEC
#define VEC 1
#endif
#ifndef LAST
#define LAST 0
#endif
#if WG == 1
#undef WG
#define WG 64
#endif
#if VEC == 4
typedef float4 Part;
#define PART_AT(p) load4(p)
#define SUM_OF(v) ((v.x + v.z) + (v.y + v.w))
#else
typedef float Part;
#define PART_AT(p) LD(p, 0)
#define SUM_OF(v) (v)
#endif
#define ACROSS ((D + VEC - 1) / VEC)
#define LANES (ACROSS < WG ? ACROSS : WG)
#define LINES (WG / LANES)
#define PIECES ((ACROSS + WG - 1) / WG)
#define DQ ((D + 3) / 4 * 4)
#define SHARE 32
#if Q8
#define CACHED(row, c) q8_4(row, c)
#else
#define CACHED(row, c) PART_AT((row) + (c)*VEC)
#endif

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void decode_attention(
    __global const T *qkv, __global C *cache, __global const uint *position, __global T *restrict o, __global float *part, ulong qkv_off,
    ulong qkv_b, ulong qkv_t, ulong cache_off, ulong cache_b, ulong cache_s, ulong cache_h, uint position_off, uint position_step, int room, uint splits,
    float scale CAP_ARG ROTARY_ARGS NORM_ARGS PAGE_ARGS
#if LAST
    , __global int *tickets
#endif
) {
  /* Queries of the rows, followed by the new keys and, with Q8, the new values. */
  __local float heads[(ROWS + (1 + Q8) * T_LEN) * DQ] __attribute__((aligned(16)));
  __local float probs[ROWS * WG];
  __local Part red[WG];
  GROUP_SCRATCH(scratch);
  const int item = get_local_id(0);
  const uint kv_heads = get_num_groups(1), chunk = get_group_id(0) / splits, split = get_group_id(0) - chunk * splits;
  const ulong h = get_group_id(1), b = get_group_id(2);
  const int r0 = chunk * ROWS, rows = min(ROWS, ALL_ROWS - r0);
  const seen_t seen = seen_of(position + position_off, position_step, b, room);
  const int share = share_of(seen, splits, SHARE), from = seen.first + (int)split * share, end = min(seen.end, from + share);
#if LAST
  /* Without visible keys, partial sums do not exist, but one group must write the result. */
  const int used = share > 0 ? (seen.end - seen.first + share - 1) / share : 1;
  if (split >= used) return;
#else
  const int used = splits;
#endif
  __global const T *q = qkv + qkv_off + b * qkv_b + h * GROUP * D;
  __global const T *new_k = qkv + qkv_off + b * qkv_b + ((ulong)kv_heads * GROUP + h) * D, *new_v = new_k + (ulong)kv_heads * D;
  __global C *keys = cache + cache_off + FIRST_ROW(b) + h * cache_h, *values = keys + kv_heads * cache_h;
  PAGES_OF(b);

  const int all = rows + seen.fits, held = all + Q8 * seen.fits;
#define TOKEN_OF(r) ((r) < rows ? (r0 + (r)) / GROUP : (r)-rows)
  for (int e = item; e < (ROWS + (1 + Q8) * T_LEN) * DQ; e += WG) {
    const int r = e / DQ, d = e - r * DQ;
    __global const T *from = r < rows ? q + (r0 + r) / GROUP * qkv_t + (r0 + r) % GROUP * D : r < all ? new_k + (r - rows) * qkv_t : new_v + (r - all) * qkv_t;
    heads[e] = r < held && d < D ? LD(from, d) : 0.0f;
  }
#if QK_NORM
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int r = 0; r < all; ++r) {
    float squares = 0.0f;
    for (int d = item; d < D; d += WG) squares = fma(heads[r * DQ + d], heads[r * DQ + d], squares);
    const float by = 1.0f / sqrt(GROUP_SUM(scratch, squares) / (float)D + eps);
    for (int d = item; d < D; d += WG) heads[r * DQ + d] = heads[r * DQ + d] * by * (LD(r < rows ? gamma_q : gamma_k, d) + (float)UNIT);
  }
#endif
#if HALF
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int e = item; e < all * HALF; e += WG) {
    const int r = e / HALF, i = e - r * HALF;
    const ulong angle = (ulong)min(seen.p + TOKEN_OF(r), room - 1) * HALF + i;
    const float low = heads[r * DQ + i], high = heads[r * DQ + i + HALF], c = cosines[angle], s = sines[angle];
    heads[r * DQ + i] = low * c - high * s;
    heads[r * DQ + i + HALF] = high * c + low * s;
  }
#endif
  barrier(CLK_LOCAL_MEM_FENCE);
#if Q8
  for (int e = item; e < rows * D; e += WG) heads[e / D * DQ + e % D] *= FACTOR;
  /* Each item rounds a group of 32 elements of a new key or value. */
  for (int e = item; e < (held - rows) * Q8_GROUPS; e += WG) {
    const int r = rows + e / Q8_GROUPS, g = e % Q8_GROUPS, t = r < all ? r - rows : r - all;
    __local float *x = heads + r * DQ + 32 * g;
    const int words = min(8, Q8_WORDS - 8 * g);
    float most = 0.0f;
    for (int i = 0; i < 4 * words; ++i) most = q8_most(most, x[i]);
    const ushort bits = q8_scale_of(most);
    const float by = vload_half(0, (const half *)&bits);
    __global uint *to = (r < all ? keys : values) + ROW_AT(seen.p + t);
    for (int w = 0; w < words; ++w) {
      const char4 four = (char4)(q8_of(x[4 * w], by), q8_of(x[4 * w + 1], by), q8_of(x[4 * w + 2], by), q8_of(x[4 * w + 3], by));
      const float4 back = convert_float4(four) * by;
      if (get_group_id(0) == 0) to[8 * g + w] = as_uint(four);
      x[4 * w] = back.x, x[4 * w + 1] = back.y, x[4 * w + 2] = back.z, x[4 * w + 3] = back.w;
    }
    if (get_group_id(0) == 0) ((__global ushort *)to)[2 * Q8_WORDS + g] = bits;
  }
#else
  for (int e = item; e < all * D; e += WG) {
    const int r = e / D, d = e - r * D;
    const float x = heads[r * DQ + d];
    heads[r * DQ + d] = r < rows ? x * FACTOR : stored(x);
    if (r >= rows && get_group_id(0) == 0) {
      const ulong at = ROW_AT(seen.p + r - rows) + d;
      ST(keys, at, x);
      ST(values, at, LD(new_v + (r - rows) * qkv_t, d));
    }
  }
#endif
  barrier(CLK_LOCAL_MEM_FENCE);

  Part acc[ROWS][PIECES];
  float top[ROWS], sum[ROWS];
  UNROLL for (int r = 0; r < ROWS; ++r) {
    top[r] = NONE, sum[r] = 0.0f;
    UNROLL for (int c = 0; c < PIECES; ++c) acc[r][c] = (Part)(0.0f);
  }
  const int lane = item % LANES, line = item / LANES;
  for (int s0 = from; s0 < end; s0 += WG) {
    const int n = min(WG, end - s0), s = s0 + item;
    Part dot[ROWS];
    UNROLL for (int r = 0; r < ROWS; ++r) dot[r] = (Part)(0.0f);
    if (s < min(seen.p, end)) {
      __global const C *key = keys + ROW_AT(s);
      _Pragma("unroll 4") for (int c = 0; c < ACROSS; ++c) {
        const Part k = CACHED(key, c);
        UNROLL for (int r = 0; r < ROWS; ++r) dot[r] = fma(k, *(__local const Part *)(heads + r * DQ + c * VEC), dot[r]);
      }
    } else if (s < end) {
      __local const float *key = heads + (rows + s - seen.p) * DQ;
      for (int c = 0; c < ACROSS; ++c) {
        const Part k = *(__local const Part *)(key + c * VEC);
        UNROLL for (int r = 0; r < ROWS; ++r) dot[r] = fma(k, *(__local const Part *)(heads + r * DQ + c * VEC), dot[r]);
      }
    }
    UNROLL for (int r = 0; r < ROWS; ++r) {
      const float score = r < rows && s < end && sees(seen, (r0 + r) / GROUP, s) ? CAPPED(SUM_OF(dot[r])) : NEG;
      const float high = fmax(top[r], GROUP_MAX(scratch, score)), by = exp2(top[r] - high), e = exp2(score - high);
      top[r] = high;
      sum[r] = fma(sum[r], by, e);
      probs[r * WG + item] = e;
      UNROLL for (int c = 0; c < PIECES; ++c) acc[r][c] *= by;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (line < LINES) {
      _Pragma("unroll 4") for (int i = line; i < n; i += LINES) {
#if !Q8
        __global const T *value = s0 + i < seen.p ? values + ROW_AT(s0 + i) : new_v + (s0 + i - seen.p) * qkv_t;
#define VALUE(c) PART_AT(value + (c)*VEC)
#else
        __global const C *value = s0 + i < seen.p ? values + ROW_AT(s0 + i) : values;
        __local const float *fresh = heads + (all + max(0, s0 + i - seen.p)) * DQ;
#define VALUE(c) (s0 + i < seen.p ? q8_4(value, c) : *(__local const Part *)(fresh + 4 * (c)))
#endif
        UNROLL for (int c = 0; c < PIECES; ++c) {
          if (PIECES == 1 || lane + c * WG < ACROSS) {
            const Part v = VALUE(lane + c * WG);
            UNROLL for (int r = 0; r < ROWS; ++r) acc[r][c] = fma((Part)(probs[r * WG + i]), v, acc[r][c]);
          }
        }
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }

  /* Adds the lines' sums in order. */
  __global float *to = part + (((ulong)split * get_num_groups(2) + b) * kv_heads + h) * ALL_ROWS * PART;
  UNROLL for (int r = 0; r < ROWS; ++r) {
    const float whole = GROUP_SUM(scratch, sum[r]);
    const int t = (r0 + r) / GROUP, g = (r0 + r) % GROUP;
    /* If all scores of a row are -infinity, the result is NaN, as the softmax of such a row. */
    const float by = used > 1 ? 1.0f : t >= seen.fits || whole == 0.0f ? NAN : 1.0f / whole;
    UNROLL for (int c = 0; c < PIECES; ++c) {
      barrier(CLK_LOCAL_MEM_FENCE);
      red[item] = acc[r][c];
      barrier(CLK_LOCAL_MEM_FENCE);
      if (item < LANES && lane + c * WG < ACROSS && r < rows) {
        Part out = red[item];
        for (int l = 1; l < LINES; ++l) out += red[l * LANES + item];
        out *= by;
        for (int l = 0; l < VEC; ++l) {
          const int d = (lane + c * WG) * VEC + l;
          const float v = ((const float *)&out)[l];
          if (D % VEC != 0 && d >= D) break;
          if (used > 1) to[(r0 + r) * PART + d] = v;
          else ST(o, ((b * T_LEN + t) * kv_heads + h) * GROUP * D + g * D + d, v);
        }
      }
    }
    if (used > 1 && item == 0 && r < rows) {
      to[(r0 + r) * PART + D] = top[r];
      to[(r0 + r) * PART + D + 1] = whole;
    }
  }
#if LAST
  if (used == 1) return;
  __local int is_last;
  barrier(CLK_GLOBAL_MEM_FENCE);
  if (item == 0) {
    __global int *ticket = tickets + (b * kv_heads + h) * CHUNKS_OF_ROWS + chunk;
    is_last = turn_taken(ticket) == used - 1;
    if (is_last) *ticket = 0;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (!is_last) return;
  const ulong apart = get_num_groups(2) * kv_heads * ALL_ROWS * PART;
  for (int e = item; e < rows * D; e += WG) {
    const int r = r0 + e / D, d = e % D, t = r / GROUP, g = r % GROUP;
    __global const float *row = part + ((b * kv_heads + h) * ALL_ROWS + r) * PART;
    float high = NONE, out = 0.0f, total = 0.0f;
    for (int i = 0; i < used; ++i) high = fmax(high, part_1_of(row + i * apart + D));
    for (int i = 0; i < used; ++i) {
      const float by = exp2(part_1_of(row + i * apart + D) - high);
      total = fma(part_1_of(row + i * apart + D + 1), by, total);
      out = fma(part_1_of(row + i * apart + d), by, out);
    }
    ST(o, ((b * T_LEN + t) * kv_heads + h) * GROUP * D + g * D + d, t >= seen.fits || total == 0.0f ? NAN : out / total);
  }
#endif
}

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void decode_attention_join(__global const float *restrict part,
                                                                                    __global const uint *position, __global T *restrict o,
                                                                                    uint position_off, uint position_step, int room, uint splits) {
  const ulong kv_heads = get_num_groups(1), h = get_group_id(1), b = get_group_id(2), apart = get_num_groups(2) * kv_heads * ALL_ROWS * PART;
  const int r0 = get_group_id(0) * ROWS, rows = min(ROWS, ALL_ROWS - r0);
  const seen_t seen = seen_of(position + position_off, position_step, b, room);
  for (int e = get_local_id(0); e < rows * D; e += WG) {
    const int r = r0 + e / D, d = e % D, t = r / GROUP, g = r % GROUP;
    __global const float *row = part + ((b * kv_heads + h) * ALL_ROWS + r) * PART;
    float high = NONE, out = 0.0f, total = 0.0f;
    for (uint i = 0; i < splits; ++i) high = fmax(high, row[i * apart + D]);
    for (uint i = 0; i < splits; ++i) {
      const float by = exp2(row[i * apart + D] - high);
      total = fma(row[i * apart + D + 1], by, total);
      out = fma(row[i * apart + d], by, out);
    }
    ST(o, ((b * T_LEN + t) * kv_heads + h) * GROUP * D + g * D + d, t >= seen.fits || total == 0.0f ? NAN : out / total);
  }
}
