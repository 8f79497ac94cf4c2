__attribute__((reqd_work_group_size(ITEMS + 32 * RING, 1, 1))) WARP_OF_32 __kernel void decode_step(
    __global const T *x, __global const uint *token_at, __global const uint *position_at, __global const T *places, __global const T *norms, __global const T *biases, __global const T *head_norms,
    __global const float *cosines, __global const float *sines, __global const ulong *table,
#if PAGE
    __global const uint *pages,
#endif
    volatile __global Word *words, __global uint *state,
    __global T *logits, ulong x_off, ulong token_off, ulong position_off, int room, int angle_rows, float eps, float scale, float score_cap, float residual,
    float logits_scale, float logits_cap, float embedding_scale) {
  __local uint codes[QUANTISED ? (WIDEST + 31) / 32 * 8 : 1] __attribute__((aligned(16)));
  __local float2 scales[QUANTISED ? (WIDEST + 31) / 32 : 1];
  __local float4 floats[HAS(0) ? WIDEST / 4 : 1];
  __local float sums[MOST_ROWS / GROUPS + 4], per_warp[(NORMED ? 4 : QK_NORM == 2 ? 2 : 1) * WARPS];
#if NORMED
  __local float4 residuals[DIM / 4], came[POST ? DIM / 4 : 1];
#endif
#if !POST
  __local float stream[DIM / GROUPS + 2];
#endif
  __local float scratch[(6 + WARPS) * HEAD + 2 * WARPS];
  __local ulong maps[LAYERS * STAGES * PARTS + PARTS], layers[LAYERS * (VARIED ? 3 : 1)];
  Self self, *me = &self;
  me->item = (int)get_local_id(0), me->lane = me->item & 31, me->warp = me->item / 32, me->group = (int)get_group_id(0);
  me->x.codes = codes, me->x.scales = scales, me->x.floats = floats;
  me->sums = sums, me->warps = per_warp, me->scratch = scratch, me->words = words;
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
  const int position = (int)min(position_at[position_off], (uint)room);
  const uint epochs = state[0] * (uint)LAYERS + 1u;
  if (position >= room) { /* No row for the token's key: all groups end here. */
    for (int i = (int)get_global_id(0); i < VOCAB; i += (int)get_global_size(0)) ST(logits, i, NAN);
    return;
  }
#if RING
  if (me->item >= ITEMS) {
    if (me->item == ITEMS) feed(me, addresses);
    return;
  }
#endif
#if EMBEDDED
  const uint number = token_at[token_off];
  const Token token = {x + x_off + (ulong)min(number, VOCAB - 1u) * DIM, places + (ulong)position * DIM, number < VOCAB ? embedding_scale : NAN};
#else
  const Token token = {x + x_off, places, 1.0f};
#endif
#if !POST
  const int own = share(DIM, me->group);
  for (int i = me->item; i < share(DIM, me->group + 1) - own; i += ITEMS) stream[i] = token1(&token, own + i);
#endif
  const ulong angles = (ulong)position * HALF;
#if !VARIED
  const int splits = shares(position + 1);
  const Attention attention = {0, cosines + angles, sines + angles, head_norms, scale, eps, score_cap};
#endif

  for (int step = 0; step <= LAYERS * STAGES; ++step) {
    const int layer = step / STAGES, stage = step < LAYERS * STAGES ? step % STAGES : HEAD_STAGE;
    const uint epoch = epochs + (uint)layer & 0xffffu, last = epoch - 1u & 0xffffu;
    const int n = stage_rows(stage), k = stage_input(stage), first = share(n, me->group), count = share(n, me->group + 1) - first;
#if VARIED
    const int at_layer = 3 * min(layer, LAYERS - 1), unseen = max(position + 1 - (int)layers[at_layer + 1], 0), splits = shares(position + 1 - unseen);
#endif
#if BIASES
    /* Of the item's first row; there are seldom more. */
    __global const T *bias = biases_of(biases, layer, stage);
    const float2 early = me->item < count ? bias_at(bias, stage, first + me->item) : (float2)(0.0f);
#endif
    /* The input. */
    float factor = 1.0f;
    if (stage == 1) {
      take_heads(me, splits, epoch);
      MEET();
    } else if (stage == 3) {
      take(me, W_HIDDEN, HIDDEN, epoch, 0);
      MEET();
    } else {
#if NORMED
      take_stream(me, residuals, came, step, epoch, &token, norms, residual, eps);
      MEET();
#else
      __global const T *norm = norms + (ulong)(2 * layer + (stage == 2)) * DIM;
      const float squares = step == 0 ? take_vector(me, &token, norm) : take(me, stage == 2 ? X_MID : X_IN, DIM, stage == 2 ? epoch : last, norm);
      factor = rsqrt(group_sum(me, squares) * (1.0f / DIM) + eps);
#endif
    }
    /* The map. */
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
    /* What becomes of the sums. */
    for (int i = me->item; i < count; i += ITEMS) {
      const int at = first + i;
#if BIASES
      const float2 shift = i == me->item ? early : bias_at(bias, stage, at);
      const float y = sums[i] * factor + shift.x;
#else
      const float y = sums[i] * factor;
#endif
      if (stage == 0) {
        publish(me, W_QKV + at, y, epoch);
      } else if (stage == 2) {
        float made = activated(y);
#if GATED && BIASES
        made *= sums[count + i] * factor + shift.y;
#elif GATED
        made *= sums[count + i] * factor;
#endif
        publish(me, W_HIDDEN + at, made, epoch);
      } else if (stage == HEAD_STAGE) {
        ST(logits, at, logit_of(y, logits_scale, logits_cap));
      } else {
#if POST
        publish(me, (stage == 1 ? X_MID : X_IN) + at, y, epoch);
#else
        const float sum = stream[i] += SCALED & 1 ? residual * y : y;
        if (stage == 3 || !PARALLEL) publish(me, (stage == 1 ? X_MID : X_IN) + at, sum, epoch);
#endif
      }
    }
#if !RING /* items of a group that run one after the other do not wait for one another between barriers */
    MEET();
#endif
    if (stage == 0) {
#if VARIED
      const ulong kind = layers[at_layer + 2], set = kind >> 32, start = (set > 0 ? set - 1 : 0) * (ulong)angle_rows * HALF + angles;
      Attention a = {0, cosines + start, sines + start, head_norms, as_float((uint)kind), eps, score_cap, set > 0, unseen};
      a.rows = (__global T *)layers[at_layer];
#else
      Attention a = attention;
      a.rows = (__global T *)layers[layer];
#endif
#if PAGE
      a.pages = pages;
#endif
      a.norms += (QK_NORM == 2 ? QUERIES + KEYS : 2 * HEAD) * layer;
      for (int unit = me->group; unit < HEADS * SPLITS; unit += GROUPS) {
        if (unit < HEADS * splits) attend(me, &a, unit, position, splits, epoch);
        else attend_to_nothing(me, unit, epoch);
      }
    }
    /* Sums and input are read by all before the next stage overwrites them. */
    MEET();
  }
  /* All groups have read it: this one has words of every group's last layer. */
  if (me->group == 0 && me->item == 0) state[0] += 1u;
}
