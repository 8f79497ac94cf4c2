/* The kernel decode_step: one token of each of TEXTS texts through all layers in one launch. decode_step_sm90.cl has the contract: buffers, stages,
 * exchange between groups and defines. The files decode_step_input, _norms, _rows and _attention and planes_dot.cl have its parts.
 *
 * Launch: ITEMS = 512 work-items per group, and 32 more with RING, which fill the ring. All groups must run at the same time: with RING one on each
 * multiprocessor, otherwise one on a CPU and two on a simulated device. Launched by `DecodeStep` of decode_step/mod.rs.
 */
typedef struct {
  int position, unseen, splits;
} Place;
static inline Place place_of(int position, int window) {
  Place place = {max(position, 0), 0, 0};
#if VARIED
  place.unseen = max(place.position + 1 - window, 0);
#endif
  place.splits = shares(place.position + 1 - place.unseen);
  return place;
}

__attribute__((reqd_work_group_size(ITEMS + 32 * RING, 1, 1))) WARP_OF_32 __kernel void decode_step(
    __global const T *x, __global const uint *token_at, __global const uint *position_at, __global const T *places, __global const T *norms, __global const T *biases, __global const T *head_norms,
    __global const float *cosines, __global const float *sines, __global const ulong *table,
#if PAGE
    __global const uint *pages,
#endif
    volatile __global Word *words, __global uint *state,
    __global T *logits, ulong x_off, ulong token_off, ulong position_off, int position_step, int page_step, int room, int angle_rows, float eps, float scale, float score_cap, float residual,
    float logits_scale, float logits_cap, float embedding_scale) {
  __local uint codes[TEXTS * CODES] __attribute__((aligned(16)));
  __local float2 scales[TEXTS * SCALES];
  __local float4 floats[TEXTS * FLOATS];
  __local float sums[TEXTS * SUMS], per_warp[TEXTS * WARP_SUMS];
#if NORMED
  __local float4 residuals[TEXTS * (DIM / 4)], came[POST ? DIM / 4 : 1];
#endif
#if !POST
  __local float stream[TEXTS * STREAM];
#endif
  __local int positions[TEXTS]; /* -1: beyond the caches */
#if EMBEDDED
  __local uint numbers[TEXTS];
#endif
  __local float scratch[(6 + WARPS) * HEAD + 2 * WARPS];
  __local ulong maps[LAYERS * STAGES * PARTS + PARTS], layers[LAYERS * (VARIED ? 3 : 1)];
  Self self, *me = &self;
  me->item = (int)get_local_id(0), me->lane = me->item & 31, me->warp = me->item / 32, me->group = (int)get_group_id(0);
  me->sums = sums, me->scratch = scratch;
#define TEXT(t)                                                                                              \
  me->x.codes = codes + (t) * CODES, me->x.scales = scales + (t) * SCALES, me->x.floats = floats + (t) * FLOATS; \
  me->warps = per_warp + (t) * WARP_SUMS, me->words = words + (t) * WORDS;
  TEXT(0)
  for (int t = me->item; t < TEXTS; t += ITEMS) {
    const uint position = position_at[position_off + (ulong)(t * position_step)];
    positions[t] = position < (uint)room ? (int)position : -1;
#if EMBEDDED
    numbers[t] = token_at[token_off + (ulong)t];
#endif
  }
  __global const ulong *addresses = table + 3 * LAYERS;
  for (int i = me->item; i < LAYERS * STAGES * PARTS + PARTS; i += ITEMS + 32 * RING) maps[i] = addresses[2 * i + 1];
#if VARIED
  for (int i = me->item; i < 3 * LAYERS; i += ITEMS + 32 * RING) layers[i] = table[i];
#else
  for (int i = me->item; i < LAYERS; i += ITEMS + 32 * RING) layers[i] = table[3 * i];
#endif
#if RING
  __local uchar slots[RING_SLOTS * SLOT] __attribute__((aligned(128)));
  __local ulong barriers[2 * RING_SLOTS];
  me->slots = slots, me->ring = (uint)(size_t)slots, me->full = (uint)(size_t)barriers, me->empty = me->full + 8 * RING_SLOTS;
  me->slot = 0, me->phase = 0;
  if (me->item == 0) {
    for (int i = 0; i < RING_SLOTS; ++i) {
      mbar_init(me->full + 8 * i, 1);
      mbar_init(me->empty + 8 * i, WARPS);
    }
    barriers_ready();
  }
#endif
  barrier(CLK_LOCAL_MEM_FENCE);
  const uint epochs = state[0] * (uint)LAYERS + 1u;
  int texts = 0;
  UNROLL for (int t = 0; t < TEXTS; ++t) texts += positions[t] >= 0;
  if (texts == 0) { /* No token has a row for its key: all groups end here. */
    for (int i = (int)get_global_id(0); i < TEXTS * VOCAB; i += (int)get_global_size(0)) ST(logits, i, NAN);
    return;
  }
#if RING
  if (me->item >= ITEMS) {
    if (me->item == ITEMS) feed(me, addresses);
    return;
  }
#endif
#if EMBEDDED
#define TOKEN(t)                                                                                             \
  const uint number = numbers[t];                                                                            \
  const Token token = {x + x_off + (ulong)min(number, VOCAB - 1u) * DIM, places + (ulong)max(positions[t], 0) * DIM, \
                       number < VOCAB ? embedding_scale : NAN};
#else
#define TOKEN(t) const Token token = {x + x_off + (ulong)(t) * DIM, places, 1.0f};
#endif
#if !POST
  const int own = share(DIM, me->group);
  for (int t = 0; t < TEXTS; ++t) {
    TOKEN(t)
    for (int i = me->item; i < share(DIM, me->group + 1) - own; i += ITEMS) stream[t * STREAM + i] = token1(&token, own + i);
  }
#endif
#if TEXTS == 1
  TOKEN(0)
#endif

/* Row of item j within the group's rows; the rows of all texts follow one another. */
#define ROW(j) (TEXTS > 1 ? (j) % max(count, 1) : (j))
  for (int step = 0; step <= LAYERS * STAGES; ++step) {
    const int layer = step / STAGES, stage = step < LAYERS * STAGES ? step % STAGES : HEAD_STAGE;
    const uint epoch = epochs + (uint)layer & 0xffffu, last = epoch - 1u & 0xffffu;
    const int n = stage_rows(stage), k = stage_input(stage), first = share(n, me->group), count = share(n, me->group + 1) - first;
#if VARIED
    const int at_layer = 3 * min(layer, LAYERS - 1), window = (int)layers[at_layer + 1];
#else
    const int window = 0;
#endif
#if BIASES
    /* Bias of the item's first row. Items seldom have more rows. */
    __global const T *bias = biases_of(biases, layer, stage);
    const float2 early = me->item < TEXTS * count ? bias_at(bias, stage, first + ROW(me->item)) : (float2)(0.0f);
#endif
    /* Loads the input of each text. */
    _Pragma("unroll 1") for (int t = 0; t < TEXTS; ++t) {
      TEXT(t)
#if TEXTS > 1
      TOKEN(t)
#endif
      if (stage == 1) {
        take_heads(me, place_of(positions[t], window).splits, epoch);
      } else if (stage == 3) {
        take(me, W_HIDDEN, HIDDEN, epoch, 0);
      } else {
#if NORMED
        take_stream(me, residuals + t * (DIM / 4), came, step, epoch, &token, norms, residual, eps);
#else
        __global const T *norm = norms + (ulong)(2 * layer + (stage == 2)) * DIM;
        float squares = step == 0 ? take_vector(me, &token, norm) : take(me, stage == 2 ? X_MID : X_IN, DIM, stage == 2 ? epoch : last, norm);
        squares = lanes_sum(squares, 32);
        if (me->lane == 0) me->warps[me->warp] = squares;
#endif
      }
    }
    TEXT(0)
    MEET();
    float factors[TEXTS];
    UNROLL for (int t = 0; t < TEXTS; ++t) {
      factors[t] = 1.0f;
#if !NORMED
      if (stage % 2 == 0) {
        float squares = 0.0f;
        for (int w = 0; w < WARPS; ++w) squares += per_warp[t * WARP_SUMS + w];
        factors[t] = rsqrt(squares * (1.0f / DIM) + eps);
      }
#endif
    }
    /* Multiplies by the map. */
    for (int index = 0, before = 0; index < PARTS; ++index) {
      const ulong part = maps[step * PARTS + index];
      const Rows r = rows_of(part, stage, n, index, before, me->group);
      before += (int)(part & 0xffffffu);
#if RING
      if (r.count > 0) multiply(me, r, 0, k);
#else
      if (r.count > 0) multiply(me, r, (RowBytes)(addresses[2 * (step * PARTS + index)] + (ulong)r.first * (ulong)r.bytes), k);
#endif
    }
    MEET();
    /* Completes the sums. */
    for (int j = me->item; j < TEXTS * count; j += ITEMS) {
      const int i = ROW(j), t = TEXTS > 1 ? j / count : 0, at = first + i;
      __local const float *sums_of = sums + t * SUMS;
      TEXT(t)
      float factor = factors[0];
      UNROLL for (int other = 1; other < TEXTS; ++other) factor = t == other ? factors[other] : factor;
#if BIASES
      const float2 shift = j == me->item ? early : bias_at(bias, stage, at);
      const float y = sums_of[i] * factor + shift.x;
#else
      const float y = sums_of[i] * factor;
#endif
      if (stage == 0) {
        publish(me, W_QKV + at, y, epoch);
      } else if (stage == 2) {
        float made = activated(y);
#if GATED && BIASES
        made *= sums_of[count + i] * factor + shift.y;
#elif GATED
        made *= sums_of[count + i] * factor;
#endif
        publish(me, W_HIDDEN + at, made, epoch);
      } else if (stage == HEAD_STAGE) {
        ST(logits, (ulong)t * VOCAB + at, TEXTS == 1 || positions[t] >= 0 ? logit_of(y, logits_scale, logits_cap) : NAN);
      } else {
#if POST
        publish(me, (stage == 1 ? X_MID : X_IN) + at, y, epoch);
#else
        const float sum = stream[t * STREAM + i] += SCALED & 1 ? residual * y : y;
        if (stage == 3 || !PARALLEL) publish(me, (stage == 1 ? X_MID : X_IN) + at, sum, epoch);
#endif
      }
    }
#if !RING /* without RING, items run one after the other between barriers */
    MEET();
#endif
    if (stage == 0) {
      /* Shares that all texts have come first, so that the groups have equal numbers of them. */
      for (int index = me->group; index < TEXTS * HEADS * SPLITS; index += GROUPS) {
        const int t = TEXTS > 1 ? index / HEADS % TEXTS : 0, unit = TEXTS > 1 ? index / (TEXTS * HEADS) * HEADS + index % HEADS : index;
        const Place place = place_of(positions[t], window);
        const ulong angles = (ulong)place.position * HALF;
#if VARIED
        const ulong kind = layers[at_layer + 2], set = kind >> 32, start = (set > 0 ? set - 1 : 0) * (ulong)angle_rows * HALF + angles;
        Attention a = {0, cosines + start, sines + start, head_norms, as_float((uint)kind), eps, score_cap, set > 0, place.unseen};
        a.rows = (__global T *)layers[at_layer];
#else
        Attention a = {0, cosines + angles, sines + angles, head_norms, scale, eps, score_cap};
        a.rows = (__global T *)layers[layer];
#endif
#if PAGE
        a.pages = pages + t * page_step;
#else
        a.rows += (ulong)(t * room) * (2 * KEYS);
#endif
        a.kept = TEXTS == 1 || positions[t] >= 0;
        a.norms += (QK_NORM == 2 ? QUERIES + KEYS : 2 * HEAD) * layer;
        TEXT(t)
        if (unit < HEADS * place.splits) attend(me, &a, unit, place.position, place.splits, epoch);
        else attend_to_nothing(me, unit, epoch);
      }
    }
    /* All items have read sums and input before the next stage overwrites them. */
    MEET();
  }
  /* All groups have read `state`, since this group has received words of every group's last layer. */
  if (me->group == 0 && me->item == 0) state[0] += 1u;
}
