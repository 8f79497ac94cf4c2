/* What a work-item knows. */
typedef struct {
  int item, lane, warp, group;
  Input x;
  __local float *sums;    /* results of the group's rows */
  __local float *warps;   /* a number of each warp */
  __local float *scratch; /* of attention */
  volatile __global uint *words;
  uint ring, full, empty, slot, phase; /* the ring: addresses in local memory, the next slot and its barriers' phase */
  const __local uchar *slots;
} Self;

/* The group's share of n rows. */
static inline int share(int n, int group) { return (int)((uint)n * (uint)group / (uint)GROUPS); }

/* Sum, or maximum, over 2, 4, 8, 16 or 32 neighbouring lanes. */
static inline float lanes_sum(float v, int lanes) {
  for (int m = 1; m < lanes; m <<= 1) v += swap_f(v, m);
  return v;
}
static inline float lanes_most(float v, int lanes) {
  for (int m = 1; m < lanes; m <<= 1) v = fmax(v, swap_f(v, m));
  return v;
}
static inline float group_sum(const Self *me, float v) {
  v = lanes_sum(v, 32);
  if (me->lane == 0) me->warps[me->warp] = v;
  MEET();
  float sum = 0.0f;
  for (int i = 0; i < WARPS; ++i) sum += me->warps[i];
  return sum;
}

/* The exchange. f16 has no more than 65504; beyond it a number stays there. */
static inline void publish(const Self *me, int at, float v, uint epoch) {
  const float most = 65504.0f, kept = v > most ? most : v < -most ? -most : v;
  write1(me->words + at, (f16_bits_of(kept) & 0xffffu) | epoch << 16);
}
static inline int stale(uint4 v, uint epoch) {
  return ((v.x >> 16 ^ epoch) | (v.y >> 16 ^ epoch) | (v.z >> 16 ^ epoch) | (v.w >> 16 ^ epoch)) != 0;
}
static inline float4 values(uint4 v) { return (float4)(f16_value(v.x & 0xffffu), f16_value(v.y & 0xffffu), f16_value(v.z & 0xffffu), f16_value(v.w & 0xffffu)); }
static inline float4 wait4(const Self *me, int at, uint4 v, uint epoch) {
  while (stale(v, epoch)) v = read4(me->words + at);
  return values(v);
}
static inline uint wait1(const Self *me, int at, uint epoch) {
  uint v = read1(me->words + at);
  while (v >> 16 != epoch) v = read1(me->words + at);
  return v & 0xffffu;
}

/* Elements 4 i .. 4 i + 3 of a stage's input of k. All lanes of a warp call it; those behind the end with `inside` 0. */
static inline void put_input(const Self *me, int k, int i, float4 v, int inside) {
#if QUANTISED
  const float most = lanes_most(fmax(fmax(fabs(v.x), fabs(v.y)), fmax(fabs(v.z), fabs(v.w))), 8);
  const int4 q = convert_int4_rte(v * (most > 0.0f ? 127.0f / most : 0.0f));
  const float sum = lanes_sum((float)(q.x + q.y + q.z + q.w), 8), scale = most * (1.0f / 127.0f);
  if (inside) {
    const int block = i / 8, word = i % 8;
    me->x.codes[word / 4 * (k / 8) + 4 * block + word % 4] = (q.x & 255) | (q.y & 255) << 8 | (q.z & 255) << 16 | (uint)q.w << 24;
    if (word == 0) me->x.scales[block] = (float2)(scale, scale * sum);
  }
#endif
#if HAS(0)
  if (inside) me->x.floats[i % 2 * (k / 8) + i / 2] = v;
#endif
}

#define EACH(k) ((k / 4 + ITEMS - 1) / ITEMS)
/* Words that a work-item asks for before it looks at the first. */
#define TOGETHER 4

/* The input is k words of the exchange, times a factor for each element if there are `factors`. Sum of squares before the factors. */
static inline float take(const Self *me, int at, int k, uint epoch, __global const T *factors) {
  float squares = 0.0f;
  for (int base = 0; base < k / 4; base += TOGETHER * ITEMS) {
    uint4 asked[TOGETHER];
    float4 by[TOGETHER];
    UNROLL for (int j = 0; j < TOGETHER; ++j) {
      const int i = base + j * ITEMS + me->item;
      if (i < k / 4) {
        if (factors) by[j] = load4(factors + 4 * i) + (float)UNIT_OFFSET;
        asked[j] = read4(me->words + at + 4 * i);
      }
    }
    UNROLL for (int j = 0; j < TOGETHER; ++j) {
      const int i = base + j * ITEMS + me->item, inside = i < k / 4;
      float4 v = (float4)(0.0f);
      if (base + j * ITEMS >= k / 4) break;
      if (inside) {
        v = wait4(me, at + 4 * i, asked[j], epoch);
        squares += dot(v, v);
        if (factors) v *= by[j];
      }
      put_input(me, k, i, v, inside);
    }
  }
  return squares;
}
/* The same of what goes into the first layer. */
static inline float take_vector(const Self *me, __global const T *row, __global const T *factors) {
  float squares = 0.0f;
  for (int i = me->item; i < EACH(DIM) * ITEMS; i += ITEMS) {
    const int inside = i < DIM / 4;
    float4 v = (float4)(0.0f);
    if (inside) {
      v = load4(row + 4 * i);
      squares += dot(v, v);
      v *= load4(factors + 4 * i) + (float)UNIT_OFFSET;
    }
    put_input(me, DIM, i, v, inside);
  }
  return squares;
}
/* What the heads made of their shares of the context, weighted by the shares' sums of exponentials. */
static inline void take_heads(const Self *me, int splits, uint epoch) {
  for (int i = me->item; i < EACH(QUERIES) * ITEMS; i += ITEMS) {
    const int inside = i < QUERIES / 4;
    float4 v = (float4)(0.0f);
    if (inside && splits == 1) v = wait4(me, W_HEADS + 4 * i, read4(me->words + W_HEADS + 4 * i), epoch);
    if (inside && splits > 1) {
      const int head = 4 * i / HEAD;
      float most = -INFINITY, all = 0.0f, size[SPLITS];
      UNROLL for (int s = 0; s < SPLITS; ++s) {
        if (s >= splits) break;
        const int at = W_WEIGHT + 2 * (s * HEADS + head);
        size[s] = as_float(wait1(me, at, epoch) << 16 | wait1(me, at + 1, epoch));
        most = fmax(most, size[s]);
      }
      UNROLL for (int s = 0; s < SPLITS; ++s) {
        if (s >= splits) break;
        const int at = W_HEADS + s * QUERIES + 4 * i;
        const float by = exp2(size[s] - most);
        all += by;
        v += by * wait4(me, at, read4(me->words + at), epoch);
      }
      v /= all;
    }
    put_input(me, QUERIES, i, v, inside);
  }
}

/* One warp's sums of one or two rows. */
static inline void keep_sums(const Self *me, int at, float2 sum, int two) {
  if (two) {
    const int upper = me->lane & 16;
    float v = upper ? sum.y : sum.x;
    v = lanes_sum(v + swap_f(upper ? sum.x : sum.y, 16), 16);
    if ((me->lane & 15) == 0) me->sums[at + (upper >> 4)] = v;
  } else {
    const float v = lanes_sum(sum.x, 32);
    if (me->lane == 0) me->sums[at] = v;
  }
}

/* Which rows of a part are the group's: the part's rows `first` .. `first + count`, whose results begin at `at` of the group's sums. In the
 * third stage, gate and value, a part is n rows and each group has the same of both; in the others parts lie one above the other. */
typedef struct {
  int first, count, at, bytes;
  uint format;
} Rows;
static inline Rows rows_of(ulong part, int stage, int n, int index, int before, int group) {
  const int from = share(n, group), end = share(n, group + 1), rows = (int)(part & 0xffffffu);
  Rows r;
  r.bytes = (int)(part >> 24 & 0xffffffffu);
  r.format = (uint)(part >> 56);
  if (stage == 2) {
    r.first = from, r.count = rows > 0 ? end - from : 0, r.at = index * (end - from);
  } else {
    r.first = max(from, before) - before;
    r.count = max(min(end, before + rows) - before - r.first, 0);
    r.at = before + r.first - from;
  }
  return r;
}
static inline int stage_rows(int stage) { return stage == 0 ? QKV : stage == 2 ? HIDDEN : stage == HEAD_STAGE ? VOCAB : DIM; }
static inline int stage_input(int stage) { return stage == 1 ? QUERIES : stage == 3 ? HIDDEN : DIM; }
/* Whether warps take two rows at a time: they share the activations that they read. */
static inline int two_rows(int count) { return count >= 4 * WARPS; }

#if RING
/* Rows of a slot. */
static inline int rows_in_slot(int bytes, int count) {
  const int rows = SLOT / bytes;
  return two_rows(count) && rows > 1 ? rows & ~1 : rows;
}
#endif

/* The sums of the group's rows of a part. */
static inline void multiply(Self *me, Rows r, RowBytes rows, int k) {
#if RING
  const int in_slot = rows_in_slot(r.bytes, r.count), two = two_rows(r.count) && in_slot > 1;
#else
  const int in_slot = max(r.count, 1), two = two_rows(r.count);
#endif
  for (int from = 0; from < r.count; from += in_slot) {
    const int here = min(in_slot, r.count - from);
#if RING
    /* Every warp waits for every slot: one that ran ahead would free slots that others still read. */
    mbar_wait(me->full + 8 * me->slot, me->phase);
    rows = me->slots + me->slot * SLOT;
#endif
    if (two) {
      for (int i = 2 * (me->warp - from / 2 & WARPS - 1); i < here; i += 2 * WARPS) {
        const float2 sum = dot_rows(r.format, &me->x, rows + i * r.bytes, i + 1 < here ? r.bytes : 0, k, me->lane);
        keep_sums(me, r.at + from + i, sum, i + 1 < here);
      }
    } else {
      for (int i = me->warp - from & WARPS - 1; i < here; i += WARPS)
        keep_sums(me, r.at + from + i, dot_rows(r.format, &me->x, rows + i * r.bytes, 0, k, me->lane), 0);
    }
#if RING
    asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
    if (me->lane == 0) mbar_arrive(me->empty + 8 * me->slot);
    if (++me->slot == RING_SLOTS) me->slot = 0, me->phase ^= 1;
#endif
  }
}

/* Attention of one query head over a share of the context. */
#define LANES (HEAD / 8)
#define AT_ONCE (ITEMS / LANES)
#define AHEAD 2
typedef struct {
  float most, sum, out[8];
} Seen;
static inline void eight(uint4 q, float *f) {
#if DTYPE == 2
  f[0] = as_float(q.x << 16), f[1] = as_float(q.x & 0xffff0000u), f[2] = as_float(q.y << 16), f[3] = as_float(q.y & 0xffff0000u);
  f[4] = as_float(q.z << 16), f[5] = as_float(q.z & 0xffff0000u), f[6] = as_float(q.w << 16), f[7] = as_float(q.w & 0xffff0000u);
#else
  f[0] = f16_value(q.x & 0xffffu), f[1] = f16_value(q.x >> 16), f[2] = f16_value(q.y & 0xffffu), f[3] = f16_value(q.y >> 16);
  f[4] = f16_value(q.z & 0xffffu), f[5] = f16_value(q.z >> 16), f[6] = f16_value(q.w & 0xffffu), f[7] = f16_value(q.w >> 16);
#endif
}
/* A position for each LANES lanes, which hold eight elements of it each; scores are in units of log 2. */
static inline void see(Seen *seen, const float *query, const float *key, const float *value, int inside) {
  float score = 0.0f;
  UNROLL for (int j = 0; j < 8; ++j) score += query[j] * key[j];
  score = lanes_sum(score, LANES);
  const float most = inside ? fmax(seen->most, score) : seen->most;
  const float keep = exp2(seen->most - most), by = inside ? exp2(score - most) : 0.0f;
  seen->most = most;
  seen->sum = seen->sum * keep + by;
  UNROLL for (int j = 0; j < 8; ++j) seen->out[j] = seen->out[j] * keep + by * value[j];
}

typedef struct {
  __global T *rows;               /* (room, 2 KV_HEADS, HEAD) */
  __global const float *cosines, *sines; /* of the position */
  __global const T *norms;               /* (2, HEAD), with QK_NORM */
  float scale, eps;
} Attention;

static inline void attend(const Self *me, const Attention *a, int unit, int position, int splits, uint epoch) {
  const int head = unit % HEADS, split = unit / HEADS, kv = head / (HEADS / KV_HEADS);
  const int each = (position + splits) / splits, from = split * each, end = min(from + each, position + 1);
  const int lane = me->item % LANES, place = me->item / LANES;
  const ulong row = 2 * KV_HEADS * HEAD;
  __global const T *keys = a->rows + kv * HEAD + 8 * lane, *rest = keys + KEYS;
  /* The first positions are asked for while the query is not there yet. */
  uint4 k[AHEAD], v[AHEAD];
  UNROLL for (int j = 0; j < AHEAD; ++j) {
    const int p = from + place + j * AT_ONCE;
    k[j] = v[j] = (uint4)(0u);
    if (p < end && p < position) k[j] = *(__global const uint4 *)(keys + p * row), v[j] = *(__global const uint4 *)(rest + p * row);
  }
  /* Query, new key, new value: as they came, then rotated. */
  __local float *came = me->scratch, *made = came + 3 * HEAD;
  const int own = position >= from && position < end;
  for (int i = me->item; i < (own ? 3 : 1) * HEAD; i += ITEMS) {
    const int part = i / HEAD, element = i % HEAD, at = part == 0 ? head * HEAD : QUERIES + (part - 1) * KEYS + kv * HEAD;
    came[i] = f16_value(wait1(me, W_QKV + at + element, epoch));
  }
  MEET();
#if QK_NORM
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
    const int element = i % HEAD, pair = element % HALF;
    float x = came[i];
    if (i < 2 * HEAD && element < 2 * HALF) {
      const float c = a->cosines[pair], s = a->sines[pair];
      x = element < HALF ? x * c - came[i + HALF] * s : x * c + came[i - HALF] * s;
    }
    made[i] = i < HEAD ? x * a->scale : x;
    if (i >= HEAD && head % (HEADS / KV_HEADS) == 0)
      ST(a->rows + position * row, (i < 2 * HEAD ? 0 : KEYS) + kv * HEAD + element, x);
  }
  MEET();
  float query[8], key[8], value[8];
  UNROLL for (int j = 0; j < 8; ++j) query[j] = made[8 * lane + j];
  Seen seen = {-1e30f, 0.0f, {0.0f}};
  UNROLL for (int j = 0; j < AHEAD; ++j) {
    const int p = from + place + j * AT_ONCE;
    if (from + j * AT_ONCE >= end) break;
    eight(k[j], key);
    eight(v[j], value);
    if (p == position) {
      UNROLL for (int l = 0; l < 8; ++l) key[l] = made[HEAD + 8 * lane + l], value[l] = made[2 * HEAD + 8 * lane + l];
    }
    see(&seen, query, key, value, p < end);
  }
  for (int base = from + AHEAD * AT_ONCE; base < end; base += AT_ONCE) {
    const int p = base + place;
    uint4 kp = (uint4)(0u), vp = (uint4)(0u);
    if (p < end && p < position) kp = *(__global const uint4 *)(keys + p * row), vp = *(__global const uint4 *)(rest + p * row);
    eight(kp, key);
    eight(vp, value);
    if (p == position) {
      UNROLL for (int l = 0; l < 8; ++l) key[l] = made[HEAD + 8 * lane + l], value[l] = made[2 * HEAD + 8 * lane + l];
    }
    see(&seen, query, key, value, p < end);
  }
  /* Positions of a warp, then of all warps. */
  const float most = lanes_most(seen.most, 32), by = exp2(seen.most - most);
  seen.sum *= by;
  UNROLL for (int j = 0; j < 8; ++j) seen.out[j] *= by;
  for (int m = LANES; m < 32; m <<= 1) {
    seen.sum += swap_f(seen.sum, m);
    UNROLL for (int j = 0; j < 8; ++j) seen.out[j] += swap_f(seen.out[j], m);
  }
  __local float *outs = made + 3 * HEAD, *mosts = outs + WARPS * HEAD, *totals = mosts + WARPS;
  if (me->lane < LANES) {
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
    if (i == 0) {
      const uint size = as_uint(all > 0.0f ? top + log2(all) : -1e30f);
      const int at = W_WEIGHT + 2 * (split * HEADS + head);
      write1(me->words + at, size >> 16 | epoch << 16);
      write1(me->words + at + 1, (size & 0xffffu) | epoch << 16);
    }
  }
  MEET();
}
/* Words of a share that the context is too short for get this epoch too, so that none of an old one ever looks new. */
static inline void attend_to_nothing(const Self *me, int unit, uint epoch) {
  for (int i = me->item; i < HEAD; i += ITEMS) write1(me->words + W_HEADS + unit / HEADS * QUERIES + unit % HEADS * HEAD + i, epoch << 16);
  for (int i = me->item; i < 2; i += ITEMS) write1(me->words + W_WEIGHT + 2 * unit + i, epoch << 16);
}

#if RING
/* One lane's work: asks for the group's rows of every part, in the order in which they are used, as slots fall empty. */
static inline void feed(const Self *me, __global const ulong *maps) {
  uint slot = 0, phase = 0, asked = 0, come = 0, come_phase = 0;
  for (int step = 0; step <= LAYERS * STAGES; ++step) {
    const int stage = step < LAYERS * STAGES ? step % STAGES : HEAD_STAGE, n = stage_rows(stage);
    for (int index = 0, before = 0; index < PARTS; ++index) {
      const ulong address = maps[2 * (step * PARTS + index)], part = maps[2 * (step * PARTS + index) + 1];
      const Rows r = rows_of(part, stage, n, index, before, me->group);
      before += (int)(part & 0xffffffu);
      const int in_slot = r.count > 0 ? rows_in_slot(r.bytes, r.count) : 1;
      for (int from = 0; from < r.count; from += in_slot) {
        const uint bytes = (uint)(min(in_slot, r.count - from) * r.bytes), bar = me->full + 8 * slot;
        mbar_wait(me->empty + 8 * slot, phase ^ 1);
        if (asked >= IN_FLIGHT) {
          mbar_wait(me->full + 8 * come, come_phase);
          if (++come == RING_SLOTS) come = 0, come_phase ^= 1;
        }
        ++asked;
        mbar_expect(bar, bytes);
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(me->ring + slot * SLOT),
                     "l"(address + (ulong)(r.first + from) * (ulong)r.bytes), "r"(bytes), "r"(bar) : "memory");
        if (++slot == RING_SLOTS) slot = 0, phase ^= 1;
      }
    }
  }
}
#endif
