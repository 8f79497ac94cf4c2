/* Attention of one query head over a share of the context, a part of the kernel decode_step: softmax(scale * q kᵀ) v by an online softmax in f32.
 * decode_step_sm90.cl has the contract and the defines, and decode_step_input.cl the types.
 *
 * attend             A group computes one unit: head unit % HEADS and share unit / HEADS of the visible positions. It waits for the
 *                    query in the exchange, and in the last share for the new key and value, and applies norm and rotation. One head of
 *                    each key head stores the new key and value in the cache. Each group publishes HEAD elements of its share's result
 *                    and the logarithm to base 2 of its sum of exponentials.
 * attend_to_nothing  publishes zeros for an unused share
 * shares             number of shares of a context
 *
 * LANES lanes process a position, eight elements each; the ITEMS / LANES positions of a pass are adjacent.
 */
#define LANES (HEAD <= 8 ? 1 : HEAD <= 16 ? 2 : HEAD <= 32 ? 4 : HEAD <= 64 ? 8 : HEAD <= 128 ? 16 : 32)
/* Whether a lane has elements. */
#define USED(lane) (8 * LANES == HEAD || 8 * (lane) < HEAD)
#define AT_ONCE (ITEMS / LANES)
/* Positions that a lane loads before the query is available. */
#define EARLY 2
typedef struct {
  float most, sum, out[8];
} Seen;
/* Eight elements of a cache. */
typedef struct {
#if DTYPE == 0
  float4 low, high;
#else
  uint4 all;
#endif
} Octet;
static inline Octet octet(__global const T *p) {
  Octet q;
#if DTYPE == 0
  q.low = *(__global const float4 *)p, q.high = *(__global const float4 *)(p + 4);
#else
  q.all = *(__global const uint4 *)p;
#endif
  return q;
}
static inline Octet no_octet(void) {
  Octet q;
#if DTYPE == 0
  q.low = q.high = (float4)(0.0f);
#else
  q.all = (uint4)(0u);
#endif
  return q;
}
static inline void eight(Octet from, float *f) {
#if DTYPE == 0
  f[0] = from.low.x, f[1] = from.low.y, f[2] = from.low.z, f[3] = from.low.w;
  f[4] = from.high.x, f[5] = from.high.y, f[6] = from.high.z, f[7] = from.high.w;
#else
  const uint4 q = from.all;
#if DTYPE == 2
  f[0] = as_float(q.x << 16), f[1] = as_float(q.x & 0xffff0000u), f[2] = as_float(q.y << 16), f[3] = as_float(q.y & 0xffff0000u);
  f[4] = as_float(q.z << 16), f[5] = as_float(q.z & 0xffff0000u), f[6] = as_float(q.w << 16), f[7] = as_float(q.w & 0xffff0000u);
#else
  f[0] = f16_value(q.x & 0xffffu), f[1] = f16_value(q.x >> 16), f[2] = f16_value(q.y & 0xffffu), f[3] = f16_value(q.y >> 16);
  f[4] = f16_value(q.z & 0xffffu), f[5] = f16_value(q.z >> 16), f[6] = f16_value(q.w & 0xffffu), f[7] = f16_value(q.w >> 16);
#endif
#endif
}
/* Adds one position to the online softmax; scores are in units of log 2. */
static inline void see(Seen *seen, const float *query, const float *key, const float *value, int inside, float cap) {
  float score = 0.0f;
  UNROLL for (int j = 0; j < 8; ++j) score += query[j] * key[j];
  score = lanes_sum(score, LANES);
#if CAPS & 1
  score = cap * tanh(score);
#endif
  const float most = inside ? fmax(seen->most, score) : seen->most;
  const float keep = exp2(seen->most - most), by = inside ? exp2(score - most) : 0.0f;
  seen->most = most;
  seen->sum = seen->sum * keep + by;
  UNROLL for (int j = 0; j < 8; ++j) seen->out[j] = seen->out[j] * keep + by * value[j];
}

typedef struct {
  __global T *rows;               /* (room, 2 KV_HEADS, HEAD), or (pages, PAGE, 2 KV_HEADS, HEAD) */
  __global const float *cosines, *sines; /* of the position */
  __global const T *norms;               /* of the layer, with QK_NORM */
  float scale, eps;
  float cap; /* cap of the scores; `scale` includes the division by it (CAPS) */
#if VARIED
  int rotated, first; /* whether there is a rotation; the first visible position */
#endif
#if PAGE
  __global const uint *pages; /* of the text */
#endif
  int kept; /* whether the token's key and value are stored */
} Attention;

/* Returns the number of shares for a context of `seen` visible positions. */
static inline int shares(int seen) { return min(SPLITS, ((seen - 1) * 2 * HEAD * (int)sizeof(T) + SPLIT_BYTES) / SPLIT_BYTES); }

/* Returns the offset of a position's row. */
static inline ulong row_at(const Attention *a, int position) {
  const ulong row = 2 * KV_HEADS * HEAD;
#if PAGE
  return ((ulong)a->pages[position / PAGE] * PAGE + (ulong)(position % PAGE)) * row;
#else
  return (ulong)position * row;
#endif
}

static inline void attend(const Self *me, const Attention *a, int unit, int position, int splits, uint epoch) {
  const int head = unit % HEADS, split = unit / HEADS, kv = head / (HEADS / KV_HEADS);
#if VARIED
  const int first = a->first, rotated = a->rotated;
#else
  const int first = 0, rotated = HALF > 0;
#endif
  const int each = (position - first + splits) / splits, from = first + split * each, end = min(from + each, position + 1);
  const int lane = me->item % LANES, place = me->item / LANES;
  __global const T *keys = a->rows + kv * HEAD + 8 * lane, *rest = keys + KEYS;
  /* The first positions are loaded before the query is available. */
  Octet k[EARLY], v[EARLY];
  UNROLL for (int j = 0; j < EARLY; ++j) {
    const int p = from + place + j * AT_ONCE;
    k[j] = v[j] = no_octet();
    if (p < end && p < position && USED(lane)) {
      const ulong row = row_at(a, p);
      k[j] = octet(keys + row), v[j] = octet(rest + row);
    }
  }
  /* Query, new key and new value: as received (`came`), then after norm and rotation (`made`). */
  __local float *came = me->scratch, *made = came + 3 * HEAD;
  const int own = position >= from && position < end;
  for (int i = me->item; i < (own ? 3 : 1) * HEAD; i += ITEMS) {
    const int part = i / HEAD, element = i % HEAD, at = part == 0 ? head * HEAD : QUERIES + (part - 1) * KEYS + kv * HEAD;
    came[i] = value_of(wait1(me, W_QKV + at + element, epoch));
  }
#if QK_NORM == 2
  float2 squares = (float2)(0.0f);
  for (int i = me->item; i < (QUERIES + (own ? KEYS : 0)) / 4; i += ITEMS) {
    const float4 x = wait4(me, W_QKV + 4 * i, read4(me->words + W_QKV + 4 * i), epoch);
    if (i < QUERIES / 4) squares.x += dot(x, x);
    else squares.y += dot(x, x);
  }
  squares = (float2)(lanes_sum(squares.x, 32), lanes_sum(squares.y, 32));
  if (me->lane == 0) me->warps[me->warp] = squares.x, me->warps[WARPS + me->warp] = squares.y;
  MEET();
  for (int i = me->item; i < (own ? 2 : 1) * HEAD; i += ITEMS) {
    const int part = i / HEAD;
    float sum = 0.0f;
    for (int w = 0; w < WARPS; ++w) sum += me->warps[part * WARPS + w];
    const int at = part == 0 ? head * HEAD : QUERIES + kv * HEAD;
    came[i] *= rsqrt(sum * (part == 0 ? 1.0f / QUERIES : 1.0f / KEYS) + a->eps) * (LD(a->norms, at + i % HEAD) + (float)UNIT_OFFSET);
  }
#endif
  MEET();
#if QK_NORM == 1
  if (me->warp < (own ? 2 : 1)) {
    __local float *head_of = came + me->warp * HEAD;
    float squares = 0.0f;
    for (int i = me->lane; i < HEAD; i += 32) squares += head_of[i] * head_of[i];
    const float by = rsqrt(lanes_sum(squares, 32) * (1.0f / HEAD) + a->eps);
    for (int i = me->lane; i < HEAD; i += 32) head_of[i] *= by * (LD(a->norms, me->warp * HEAD + i) + (float)UNIT_OFFSET);
  }
  MEET();
#endif
  for (int i = me->item; i < (own ? 3 : 1) * HEAD; i += ITEMS) {
    const int element = i % HEAD;
    float x = came[i];
#if HALF > 0
    const int pair = element % HALF;
    if (rotated && i < 2 * HEAD && element < 2 * HALF) {
      const float c = a->cosines[pair], s = a->sines[pair];
      x = element < HALF ? x * c - came[i + HALF] * s : x * c + came[i - HALF] * s;
    }
#endif
    made[i] = i < HEAD ? x * a->scale : x;
    if (i >= HEAD && a->kept && head % (HEADS / KV_HEADS) == 0)
      ST(a->rows + row_at(a, position), (i < 2 * HEAD ? 0 : KEYS) + kv * HEAD + element, x);
  }
  MEET();
  float query[8], key[8], value[8];
  UNROLL for (int j = 0; j < 8; ++j) query[j] = USED(lane) ? made[8 * lane + j] : 0.0f;
  Seen seen = {-1e30f, 0.0f, {0.0f}};
  UNROLL for (int j = 0; j < EARLY; ++j) {
    const int p = from + place + j * AT_ONCE;
    if (from + j * AT_ONCE >= end) break;
    eight(k[j], key);
    eight(v[j], value);
    if (p == position && USED(lane)) {
      UNROLL for (int l = 0; l < 8; ++l) key[l] = made[HEAD + 8 * lane + l], value[l] = made[2 * HEAD + 8 * lane + l];
    }
    see(&seen, query, key, value, p < end, a->cap);
  }
  for (int base = from + EARLY * AT_ONCE; base < end; base += AT_ONCE) {
    const int p = base + place;
    Octet kp = no_octet(), vp = kp;
    if (p < end && p < position && USED(lane)) {
      const ulong row = row_at(a, p);
      kp = octet(keys + row), vp = octet(rest + row);
    }
    eight(kp, key);
    eight(vp, value);
    if (p == position && USED(lane)) {
      UNROLL for (int l = 0; l < 8; ++l) key[l] = made[HEAD + 8 * lane + l], value[l] = made[2 * HEAD + 8 * lane + l];
    }
    see(&seen, query, key, value, p < end, a->cap);
  }
  /* Combine the positions of a warp, then of all warps. */
  const float most = lanes_most(seen.most, 32), by = exp2(seen.most - most);
  seen.sum *= by;
  UNROLL for (int j = 0; j < 8; ++j) seen.out[j] *= by;
  for (int m = LANES; m < 32; m <<= 1) {
    seen.sum += swap_f(seen.sum, m);
    UNROLL for (int j = 0; j < 8; ++j) seen.out[j] += swap_f(seen.out[j], m);
  }
  __local float *outs = made + 3 * HEAD, *mosts = outs + WARPS * HEAD, *totals = mosts + WARPS;
  if (me->lane < LANES && USED(lane)) {
    UNROLL for (int j = 0; j < 8; ++j) outs[me->warp * HEAD + 8 * lane + j] = seen.out[j];
  }
  if (me->lane == 0) mosts[me->warp] = most, totals[me->warp] = seen.sum;
  MEET();
  for (int i = me->item; i < HEAD; i += ITEMS) {
    float top = mosts[0], all = 0.0f, out = 0.0f;
    for (int w = 1; w < WARPS; ++w) top = fmax(top, mosts[w]);
    for (int w = 0; w < WARPS; ++w) {
      const float part = exp2(mosts[w] - top);
      all += part * totals[w];
      out += part * outs[w * HEAD + i];
    }
    publish(me, W_HEADS + split * QUERIES + head * HEAD + i, all > 0.0f ? out / all : 0.0f, epoch);
    if (i == 0) publish_weight(me, W_WEIGHT + 2 * (split * HEADS + head), all > 0.0f ? top + log2(all) : -1e30f, epoch);
  }
  MEET();
}
/* Publishes zeros for an unused share of a short context, with this epoch, so that its words never have a stale epoch that matches a later one. */
static inline void attend_to_nothing(const Self *me, int unit, uint epoch) {
  for (int i = me->item; i < HEAD; i += ITEMS) publish(me, W_HEADS + unit / HEADS * QUERIES + unit % HEADS * HEAD + i, 0.0f, epoch);
  for (int i = me->item; i < 2; i += ITEMS) publish(me, W_WEIGHT + 2 * unit + i, 0.0f, epoch);
}
