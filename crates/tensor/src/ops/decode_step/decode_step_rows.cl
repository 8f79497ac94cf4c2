/* Rows of a map and their sums, a part of the kernel decode_step. decode_step_sm90.cl has the contract and the defines, and decode_step_input.cl
 * the types.
 *
 * multiply   computes sums of the group's rows of a part: each row times the stage's input in local memory (planes_dot.cl), for each text
 * feed       with RING: copies the group's rows of all parts through the ring, ahead of the products; one lane of an additional warp runs it
 * rows_of    the rows of a part that a group owns
 *
 * A map has up to PARTS matrices, and each group owns a share of their rows (Rows). A warp multiplies one or two rows at a time and stores the sums
 * in `sums`, in local memory.
 */
/* Stores a warp's sums of one or two rows. */
static inline void keep_sums(const Self *me, int at, Sums sum, int two) {
  UNROLL for (int t = 0; t < TEXTS; ++t) {
    if (two) {
      const int upper = me->lane & 16;
      float v = upper ? sum.of[t].y : sum.of[t].x;
      v = lanes_sum(v + swap_f(upper ? sum.of[t].x : sum.of[t].y, 16), 16);
      if ((me->lane & 15) == 0) me->sums[t * SUMS + at + (upper >> 4)] = v;
    } else {
      const float v = lanes_sum(sum.of[t].x, 32);
      if (me->lane == 0) me->sums[t * SUMS + at] = v;
    }
  }
}

#if BIASES
/* Biases of a stage's map, 0 if it has none, and those of row i; for a gated map also that of the value's row. */
static inline __global const T *biases_of(__global const T *biases, int layer, int stage) {
  const int has = stage != HEAD_STAGE && BIASES >> stage & 1;
  return has ? biases + (ulong)layer * ALL_BIASES + (stage == 0 ? 0 : stage == 1 ? OUT_BIAS : stage == 2 ? UP_BIAS : DOWN_BIAS) : 0;
}
static inline float2 bias_at(__global const T *bias, int stage, int i) {
  float2 v = (float2)(0.0f);
  if (bias) {
    v.x = LD(bias, i);
    if (GATED && stage == 2) v.y = LD(bias, HIDDEN + i);
  }
  return v;
}
#endif
static inline float activated(float v) {
#if ACT == 4
  return tanh(v);
#else
  float slope;
  return activation(v, &slope);
#endif
}
static inline float logit_of(float v, float scale, float cap) {
#if SCALED & 2
  v *= scale;
#endif
#if CAPS & 2
  v = cap * tanh(v / cap);
#endif
  return v;
}

/* The group's rows of a part: rows `first` .. `first + count`, whose results start at `at` of the group's sums. In the third stage, gate and
 * value, a part has n rows and each group has the same rows of both. In the other stages the parts' rows are concatenated. */
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
/* Whether warps process two rows at a time, so that both use the same loads of activations. */
static inline int two_rows(int count) { return count >= 4 * WARPS; }

#if RING
/* Returns the rows of a slot. */
static inline int rows_in_slot(int bytes, int count) {
  const int rows = SLOT / bytes;
  return two_rows(count) && rows > 1 ? rows & ~1 : rows;
}
#endif

/* Computes the sums of the group's rows of a part. */
static inline void multiply(Self *me, Rows r, RowBytes rows, int k) {
#if RING
  const int in_slot = rows_in_slot(r.bytes, r.count), two = two_rows(r.count) && in_slot > 1;
#else
  const int in_slot = max(r.count, 1), two = two_rows(r.count);
#endif
  for (int from = 0; from < r.count; from += in_slot) {
    const int here = min(in_slot, r.count - from);
#if RING
    /* Every warp waits for every slot: a warp that ran ahead would free slots that others still read. */
    mbar_wait(me->full + 8 * me->slot, me->phase);
    rows = me->slots + me->slot * SLOT;
#endif
    if (two) {
      for (int i = 2 * (me->warp - from / 2 & WARPS - 1); i < here; i += 2 * WARPS) {
        const Sums sum = dot_rows(r.format, &me->x, rows + i * r.bytes, i + 1 < here ? r.bytes : 0, k, me->lane);
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

#if RING
/* Copies the group's rows of every part, in the order of their use, whenever slots are empty. One lane runs this. */
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
