/* Work-items, the exchange between groups, and the inputs of the stages, a part of the kernel decode_step. decode_step_sm90.cl has the contract
 * and the defines.
 *
 * publish, wait1, wait4          write a word of the exchange, and poll one or four words until their epoch is right
 * publish_weight, wait_weight    the same for an f32, which takes two words if words have 32 bits
 * take, take_vector, take_heads  Read the input of a stage from the exchange, the embeddings, or the heads' shares. put_input stores it in local
 *                                memory in the order in which the rows read it (planes_dot.cl).
 *
 * All work-items of a group call the take functions; an item owns every ITEMS-th group of four elements.
 */
/* State of a work-item. */
typedef struct {
  int item, lane, warp, group;
  Input x;                /* of the current text, like `warps` and `words` */
  __local float *sums;    /* results of the group's rows, of each text */
  __local float *warps;   /* one number per warp */
  __local float *scratch; /* for attention */
  volatile __global Word *words;
  uint ring, full, empty, slot, phase; /* the ring: addresses in local memory, the next slot and its barriers' phase */
  const __local uchar *slots;
} Self;

/* Returns the first of the group's share of n rows. */
static inline int share(int n, int group) { return (int)((uint)n * (uint)group / (uint)GROUPS); }

/* Sum or maximum over 2, 4, 8, 16 or 32 adjacent lanes. */
static inline float lanes_sum(float v, int lanes) {
  for (int m = 1; m < lanes; m <<= 1) v += swap_f(v, m);
  return v;
}
static inline float lanes_most(float v, int lanes) {
  for (int m = 1; m < lanes; m <<= 1) v = fmax(v, swap_f(v, m));
  return v;
}

/* The exchange: words with a value and an epoch. */
#if EXACT
static inline Word word_of(float v, uint epoch) { return (ulong)as_uint(v) | (ulong)epoch << 32; }
static inline uint epoch_of(Word w) { return (uint)(w >> 32); }
static inline float value_of(Word w) { return as_float((uint)w); }
#else
/* Values beyond 65504, the largest f16, are clamped. */
static inline Word word_of(float v, uint epoch) {
  const float most = 65504.0f, kept = v > most ? most : v < -most ? -most : v;
  return (f16_bits_of(kept) & 0xffffu) | epoch << 16;
}
static inline uint epoch_of(Word w) { return w >> 16; }
static inline float value_of(Word w) { return f16_value(w & 0xffffu); }
#endif
static inline void publish(const Self *me, int at, float v, uint epoch) { write1(me->words + at, word_of(v, epoch)); }
static inline int stale(Words v, uint epoch) {
  return ((epoch_of(v.x) ^ epoch) | (epoch_of(v.y) ^ epoch) | (epoch_of(v.z) ^ epoch) | (epoch_of(v.w) ^ epoch)) != 0;
}
static inline float4 wait4(const Self *me, int at, Words v, uint epoch) {
  while (stale(v, epoch)) v = read4(me->words + at);
  return (float4)(value_of(v.x), value_of(v.y), value_of(v.z), value_of(v.w));
}
static inline Word wait1(const Self *me, int at, uint epoch) {
  Word v = read1(me->words + at);
  while (epoch_of(v) != epoch) v = read1(me->words + at);
  return v;
}
/* Publishes the logarithm of a share's sum of exponentials, in f32. With 16-bit values this takes two words. */
#if EXACT
static inline void publish_weight(const Self *me, int at, float v, uint epoch) { publish(me, at, v, epoch); }
static inline float wait_weight(const Self *me, int at, uint epoch) { return value_of(wait1(me, at, epoch)); }
#else
static inline void publish_weight(const Self *me, int at, float v, uint epoch) {
  write1(me->words + at, as_uint(v) >> 16 | epoch << 16);
  write1(me->words + at + 1, (as_uint(v) & 0xffffu) | epoch << 16);
}
static inline float wait_weight(const Self *me, int at, uint epoch) {
  const uint upper = wait1(me, at, epoch) & 0xffffu, lower = wait1(me, at + 1, epoch) & 0xffffu;
  return as_float(upper << 16 | lower);
}
#endif

/* Stores elements 4 i .. 4 i + 3 of a stage's input of k. All lanes of a warp call it; lanes past the end pass `inside` 0. */
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
#if DENSE
#if DTYPE == 0
  if (inside) me->x.floats[i] = v;
#else
  if (inside) me->x.floats[i % 2 * (k / 8) + i / 2] = v;
#endif
#endif
}

#define EACH(k) ((k / 4 + ITEMS - 1) / ITEMS)
/* Words that a work-item requests before it checks the first one. */
#define TOGETHER (EXACT ? 2 : 4)

/* Reads a stage's input of k words from the exchange, multiplied by `factors` if given. Returns the item's sum of squares before the factors. */
static inline float take(const Self *me, int at, int k, uint epoch, __global const T *factors) {
  float squares = 0.0f;
  for (int base = 0; base < k / 4; base += TOGETHER * ITEMS) {
    Words asked[TOGETHER];
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
/* Input of the first layer. */
typedef struct {
  __global const T *row, *place;
  float scale;
} Token;
static inline float4 token4(const Token *t, int i) {
#if EMBEDDED == 2
  return load4(t->row + i) * t->scale + load4(t->place + i);
#elif EMBEDDED
  return load4(t->row + i) * t->scale;
#else
  return load4(t->row + i);
#endif
}
static inline float token1(const Token *t, int i) {
#if EMBEDDED == 2
  return LD(t->row, i) * t->scale + LD(t->place, i);
#elif EMBEDDED
  return LD(t->row, i) * t->scale;
#else
  return LD(t->row, i);
#endif
}
/* Reads the first layer's input like take() reads words. */
static inline float take_vector(const Self *me, const Token *token, __global const T *factors) {
  float squares = 0.0f;
  for (int i = me->item; i < EACH(DIM) * ITEMS; i += ITEMS) {
    const int inside = i < DIM / 4;
    float4 v = (float4)(0.0f);
    if (inside) {
      v = token4(token, 4 * i);
      squares += dot(v, v);
      v *= load4(factors + 4 * i) + (float)UNIT_OFFSET;
    }
    put_input(me, DIM, i, v, inside);
  }
  return squares;
}

/* Combines the heads' results of their shares of the context, weighted by the shares' sums of exponentials. */
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
        size[s] = wait_weight(me, at, epoch);
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
