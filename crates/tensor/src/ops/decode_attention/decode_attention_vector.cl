/* One step of attention over a cache, for CPUs; decode_attention_rows.cl has the formula.
 *
 * One work-item is a work-group and owns ROWS rows of a key head's list and a share of the keys. It processes BK keys at a time: scores key by
 * key, their exponentials in vectors of keys, then values by rows of the cache.
 *
 * decode_attention       groups (splits * CHUNKS_OF_ROWS, KH, B). With one share it stores the result, otherwise partial sums
 * decode_attention_join  adds the shares in order: groups (CHUNKS_OF_ROWS, KH, B)
 *
 * Design: Flash-Decoding (Dao et al. 2023): shares of the keys by group, combined by their maxima and sums; online softmax by blocks of keys.
 * Ceiling: memory bandwidth, with keys and values read once.
 */
#define BK 64
#define DV ((D + VW - 1) / VW)
#define DP (DV * VW)

/* Computes 2^x for x <= 0, within 2 ulp; 0 below -127; NaN stays NaN. The constant shifts the integer part into the low bits. */
static inline FV exp2_neg(FV x) {
  x = select(x, (FV)(-127.0f), x < (FV)(-127.0f));
  FV n = x + (FV)(12582912.0f);
  FV f = x - (n - (FV)(12582912.0f));
  FV p = fma((FV)(0.00132647273f), f, (FV)(0.00967151299f));
  p = fma(p, f, (FV)(0.0555073358f));
  p = fma(p, f, (FV)(0.240222424f));
  p = fma(p, f, (FV)(0.693147004f));
  p = fma(p, f, (FV)(1.0f));
  return AS_FV(AS_UV(p) + (AS_UV(n) << 23));
}

/* Loads D elements as DV vectors, 0 beyond. */
static inline void load_row(FV *to, __global const T *p) {
  for (int c = 0; c < D / VW; ++c) to[c] = LDV(p, c * VW);
#if D % VW
  to[D / VW] = load_part(p + D / VW * VW, D % VW);
#endif
}
static inline void store_row(__global T *p, const FV *v) {
  for (int c = 0; c < D / VW; ++c) STV(p, c * VW, v[c]);
#if D % VW
  store_part(p + D / VW * VW, v[D / VW], D % VW);
#endif
}

#if Q8
static inline void load_cached(FV *to, __global const uint *row) {
  __global const char *bytes = (__global const char *)row;
#if VW == 1
  for (int c = 0; c < D; ++c) to[c] = (float)bytes[c] * q8_scale(row, c / 32);
#else
  for (int c = 0; c < D / VW; ++c) to[c] = CAT(convert_float, VW)(CAT(vload, VW)(0, bytes + c * VW)) * q8_scale(row, c * VW / 32);
#if D % VW
  float part[VW];
  for (int k = 0; k < VW; ++k) part[k] = k < D % VW ? (float)bytes[D / VW * VW + k] * q8_scale(row, Q8_GROUPS - 1) : 0.0f;
  to[D / VW] = LDV_F32(part);
#endif
#endif
}
/* Rounds D elements to 8 bits, and stores them to the row if `kept`. */
static inline void round_row(float *x, __global uint *row, int kept) {
  for (int g = 0; g < Q8_GROUPS; ++g) {
    const int end = min(D, 32 * g + 32);
    float most = 0.0f;
    for (int d = 32 * g; d < end; ++d) most = q8_most(most, x[d]);
    const ushort bits = q8_scale_of(most);
    const float by = vload_half(0, (const half *)&bits);
    for (int w = 8 * g; w < min(8 * g + 8, Q8_WORDS); ++w) {
      uint word = 0;
      for (int d = 4 * w; d < min(4 * w + 4, end); ++d) {
        const char q = q8_of(x[d], by);
        word |= (uint)(uchar)q << 8 * (d - 4 * w);
        x[d] = (float)q * by;
      }
      if (kept) row[w] = word;
    }
    if (kept) ((__global ushort *)row)[2 * Q8_WORDS + g] = bits;
  }
}
#else
#define load_cached load_row
#endif

#if DTYPE != 0
/* Rounds numbers to T. */
static inline FV stored_vector(FV x) {
#if DTYPE == 1
  HV h;
  CAT(CAT(vstore_half, VW), _rte)(x, 0, (half *)&h);
  return CAT(vload_half, VW)(0, (const half *)&h);
#else
  return AS_FV(CAT(convert_uint, VW)(bf16_rounded(x)) << 16);
#endif
}
#endif

/* Prepares a head of q or k for the product: normalizes it, rotates it, multiplies it by `factor`. */
static inline void prepare(float *to, __global const T *from, int row, float factor ROTARY_ARGS
#if QK_NORM
                           , __global const T *restrict gamma, float eps
#endif
) {
  FV x[DV];
  load_row(x, from);
#if QK_NORM
  FV squares = (FV)(0.0f);
  for (int c = 0; c < DV; ++c) squares = fma(x[c], x[c], squares);
  const float by = 1.0f / sqrt(sum_lanes(squares) / (float)D + eps);
  FV g[DV];
  load_row(g, gamma);
  for (int c = 0; c < DV; ++c) x[c] = x[c] * by * (g[c] + (float)UNIT);
#endif
  for (int c = 0; c < DV; ++c) STV_F32(to + c * VW, x[c]);
#if HALF
  cosines += (ulong)row * HALF;
  sines += (ulong)row * HALF;
  for (int i = 0; i < HALF; ++i) {
    const float low = to[i], high = to[i + HALF];
    to[i] = low * cosines[i] - high * sines[i];
    to[i + HALF] = high * cosines[i] + low * sines[i];
  }
#endif
  for (int c = 0; c < DV; ++c) STV_F32(to + c * VW, factor * LDV_F32(to + c * VW));
}
#if HALF && QK_NORM
#define PREPARE(to, from, row, factor, gamma) prepare(to, from, row, factor, cosines, sines, gamma, eps)
#elif HALF
#define PREPARE(to, from, row, factor, gamma) prepare(to, from, row, factor, cosines, sines)
#elif QK_NORM
#define PREPARE(to, from, row, factor, gamma) prepare(to, from, row, factor, gamma, eps)
#else
#define PREPARE(to, from, row, factor, gamma) prepare(to, from, row, factor)
#endif

__kernel void decode_attention(__global const T *qkv, __global C *cache, __global const uint *position, __global T *restrict o,
                               __global float *restrict part, ulong qkv_off, ulong qkv_b, ulong qkv_t, ulong cache_off, ulong cache_b,
                               ulong cache_s, ulong cache_h, uint position_off, uint position_step, int room, uint splits, float scale CAP_ARG ROTARY_ARGS
                                   NORM_ARGS PAGE_ARGS) {
  const uint kv_heads = get_num_groups(1), chunk = get_group_id(0) / splits, split = get_group_id(0) - chunk * splits;
  const ulong h = get_group_id(1), b = get_group_id(2);
  const int r0 = chunk * ROWS, rows = min(ROWS, ALL_ROWS - r0);
  const seen_t seen = seen_of(position + position_off, position_step, b, room);
  __global const T *q = qkv + qkv_off + b * qkv_b + h * GROUP * D;
  __global const T *new_k = qkv + qkv_off + b * qkv_b + ((ulong)kv_heads * GROUP + h) * D, *new_v = new_k + (ulong)kv_heads * D;
  __global C *keys = cache + cache_off + FIRST_ROW(b) + h * cache_h, *values = keys + kv_heads * cache_h;
  PAGES_OF(b);

  float fresh[T_LEN * DP], query[ROWS * DP];
#if Q8
  float fresh_values[T_LEN * DP];
#endif
  for (int t = 0; t < seen.fits; ++t) {
    PREPARE(fresh + t * DP, new_k + t * qkv_t, seen.p + t, 1.0f, gamma_k);
#if Q8
    FV x[DV];
    load_row(x, new_v + t * qkv_t);
    for (int c = 0; c < DV; ++c) STV_F32(fresh_values + t * DP + c * VW, x[c]);
    const ulong at = ROW_AT(seen.p + t);
    round_row(fresh + t * DP, keys + at, get_group_id(0) == 0);
    round_row(fresh_values + t * DP, values + at, get_group_id(0) == 0);
#else
#if DTYPE != 0
    for (int c = 0; c < DV; ++c) STV_F32(fresh + t * DP + c * VW, stored_vector(LDV_F32(fresh + t * DP + c * VW)));
#endif
    if (get_group_id(0) == 0) {
      FV x[DV];
      for (int c = 0; c < DV; ++c) x[c] = LDV_F32(fresh + t * DP + c * VW);
      store_row(keys + ROW_AT(seen.p + t), x);
      load_row(x, new_v + t * qkv_t);
      store_row(values + ROW_AT(seen.p + t), x);
    }
#endif
  }
  for (int r = 0; r < rows; ++r) {
    const int t = (r0 + r) / GROUP, g = (r0 + r) % GROUP;
    PREPARE(query + r * DP, q + t * qkv_t + g * D, min(seen.p + t, room - 1), FACTOR, gamma_q);
  }

  FV acc[ROWS * DV];
  float top[ROWS], sum[ROWS], p[ROWS * BK];
  for (int i = 0; i < ROWS * DV; ++i) acc[i] = (FV)(0.0f);
  for (int r = 0; r < ROWS; ++r) top[r] = NONE, sum[r] = 0.0f;
  const int share = share_of(seen, splits, BK), from = seen.first + split * share, end = min(seen.end, from + share);
  for (int s0 = from; s0 < end; s0 += BK) {
    const int n = min(BK, end - s0);
    for (int i = 0; i < n; ++i) {
      const int s = s0 + i;
      FV k[DV];
      if (s < seen.p) {
        load_cached(k, keys + ROW_AT(s));
      } else {
        for (int c = 0; c < DV; ++c) k[c] = LDV_F32(fresh + (s - seen.p) * DP + c * VW);
      }
      for (int r = 0; r < rows; ++r) {
        FV dot = k[0] * LDV_F32(query + r * DP);
        UNROLL for (int c = 1; c < DV; ++c) dot = fma(k[c], LDV_F32(query + r * DP + c * VW), dot);
        const float score = CAPPED(sum_lanes(dot));
        p[r * BK + i] = sees(seen, (r0 + r) / GROUP, s) ? score : NEG;
      }
    }
    for (int r = 0; r < rows; ++r) {
      float *row = p + r * BK, high = top[r];
      for (int i = n; i < BK; ++i) row[i] = NEG;
      FV highs = LDV_F32(row);
      for (int i = VW; i < BK; i += VW) highs = highs > LDV_F32(row + i) ? highs : LDV_F32(row + i);
      high = fmax(high, max_lanes(highs));
      FV sums = (FV)(0.0f);
      for (int i = 0; i < BK; i += VW) {
        const FV e = exp2_neg(LDV_F32(row + i) - high);
        STV_F32(row + i, e);
        sums += e;
      }
      const float by = exp2(top[r] - high);
      top[r] = high;
      sum[r] = fma(sum[r], by, sum_lanes(sums));
      for (int c = 0; c < DV; ++c) acc[r * DV + c] *= by;
    }
    for (int i = 0; i < n; ++i) {
      const int s = s0 + i;
      FV v[DV];
#if Q8
      if (s < seen.p) {
        load_cached(v, values + ROW_AT(s));
      } else {
        for (int c = 0; c < DV; ++c) v[c] = LDV_F32(fresh_values + (s - seen.p) * DP + c * VW);
      }
#else
      load_row(v, s < seen.p ? values + ROW_AT(s) : new_v + (s - seen.p) * qkv_t);
#endif
      for (int r = 0; r < rows; ++r) {
        UNROLL for (int c = 0; c < DV; ++c) acc[r * DV + c] = fma((FV)(p[r * BK + i]), v[c], acc[r * DV + c]);
      }
    }
  }

  for (int r = 0; r < rows; ++r) {
    const int t = (r0 + r) / GROUP, g = (r0 + r) % GROUP;
    FV *row = acc + r * DV;
    if (splits > 1) {
      __global float *to = part + (((ulong)split * get_num_groups(2) + b) * kv_heads + h) * ALL_ROWS * PART + (ulong)(r0 + r) * PART;
      float out[DP];
      for (int c = 0; c < DV; ++c) STV_F32(out + c * VW, row[c]);
      for (int d = 0; d < D; ++d) to[d] = out[d];
      to[D] = top[r];
      to[D + 1] = sum[r];
      continue;
    }
    /* If all scores of a row are -infinity, the result is NaN, as the softmax of such a row. */
    const float by = t >= seen.fits || sum[r] == 0.0f ? NAN : 1.0f / sum[r];
    for (int c = 0; c < DV; ++c) row[c] *= by;
    store_row(o + ((b * T_LEN + t) * kv_heads + h) * GROUP * D + g * D, row);
  }
}

__kernel void decode_attention_join(__global const float *restrict part, __global const uint *position, __global T *restrict o,
                                    uint position_off, uint position_step, int room, uint splits) {
  const ulong kv_heads = get_num_groups(1), h = get_group_id(1), b = get_group_id(2), apart = get_num_groups(2) * kv_heads * ALL_ROWS * PART;
  const int r0 = get_group_id(0) * ROWS, rows = min(ROWS, ALL_ROWS - r0);
  const seen_t seen = seen_of(position + position_off, position_step, b, room);
  for (int r = r0; r < r0 + rows; ++r) {
    const int t = r / GROUP, g = r % GROUP;
    __global const float *from = part + ((b * kv_heads + h) * ALL_ROWS + r) * PART;
    float top = NONE, sum = 0.0f, out[D];
    for (uint i = 0; i < splits; ++i) top = top > from[i * apart + D] ? top : from[i * apart + D];
    for (int d = 0; d < D; ++d) out[d] = 0.0f;
    for (uint i = 0; i < splits; ++i) {
      const float by = exp2(from[i * apart + D] - top);
      sum = fma(from[i * apart + D + 1], by, sum);
      for (int d = 0; d < D; ++d) out[d] = fma(from[i * apart + d], by, out[d]);
    }
    const float by = t >= seen.fits || sum == 0.0f ? NAN : 1.0f / sum;
    __global T *to = o + ((b * T_LEN + t) * kv_heads + h) * GROUP * D + g * D;
    for (int d = 0; d < D; ++d) ST(to, d, out[d] * by);
  }
}
