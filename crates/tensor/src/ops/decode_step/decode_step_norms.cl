/* The residual stream and its norms, for models whose norms cannot be applied as a factor of a stage's sums (NORMED). It is a part of the kernel
 * decode_step; decode_step_sm90.cl has the contract and the defines, and decode_step_input.cl the types.
 *
 * take_stream   computes the input of stage 0, stage 2 or the head: adds a part's result to the stream, then applies the norm
 * moments       mean and 1 / deviation of DIM elements in local memory
 *
 * All work-items of a group call these functions. Item i owns elements 4 i to 4 i + 3, 4 (i + ITEMS) to 4 (i + ITEMS) + 3, and so on.
 */
#if NORMED
/* Returns mean and 1 / deviation of DIM elements, of which each item has every ITEMS-th four. For root-mean-square norms the mean is 0. For a
 * layer norm, each warp computes its own moments from differences first, and these are then combined. `warps` must have room for two unused
 * numbers per warp. */
static inline float2 moments(const Self *me, __local const float4 *x, __local float *warps, float eps) {
  float mean = 0.0f, squares = 0.0f;
#if LAYER_NORM
  float sum = 0.0f;
  for (int i = me->item; i < DIM / 4; i += ITEMS) sum += x[i].x + x[i].y + x[i].z + x[i].w;
  int count = 0;
  for (int i = 32 * me->warp; i < DIM / 4; i += ITEMS) count += 4 * min(32, DIM / 4 - i);
  const float own = count > 0 ? lanes_sum(sum, 32) / (float)count : 0.0f;
  for (int i = me->item; i < DIM / 4; i += ITEMS) {
    const float4 d = x[i] - own;
    squares += dot(d, d);
  }
  squares = lanes_sum(squares, 32);
  if (me->lane == 0) warps[me->warp] = own, warps[WARPS + me->warp] = squares;
  MEET();
  squares = 0.0f;
  UNROLL for (int pass = 0; pass < 2; ++pass) {
    float all = 0.0f;
    for (int w = 0; w < WARPS; ++w) {
      int n = 0;
      for (int i = 32 * w; i < DIM / 4; i += ITEMS) n += 4 * min(32, DIM / 4 - i);
      const float d = warps[w] - mean;
      all += pass == 0 ? (float)n * warps[w] : (float)n * d * d + warps[WARPS + w];
    }
    if (pass == 0) mean = all * (1.0f / DIM);
    else squares = all;
  }
#else
  for (int i = me->item; i < DIM / 4; i += ITEMS) squares += dot(x[i], x[i]);
  squares = lanes_sum(squares, 32);
  if (me->lane == 0) warps[me->warp] = squares;
  MEET();
  squares = 0.0f;
  for (int w = 0; w < WARPS; ++w) squares += warps[w];
#endif
  return (float2)(mean, rsqrt(squares * (1.0f / DIM) + eps));
}
/* A norm's factors and shift for the item's fours. */
typedef struct {
  float4 by[EACH(DIM)];
#if LAYER_NORM
  float4 shift[EACH(DIM)];
#endif
} Gains;
static inline void ask_gains(const Self *me, Gains *g, __global const T *norms, int index) {
  __global const T *norm = norms + (ulong)index * NORM_SIZE;
  UNROLL for (int j = 0; j < EACH(DIM); ++j) {
    const int i = j * ITEMS + me->item;
    if (i >= DIM / 4) break;
    g->by[j] = load4(norm + 4 * i) + (float)UNIT_OFFSET;
#if LAYER_NORM
    g->shift[j] = load4(norm + DIM + 4 * i);
#endif
  }
}
static inline float4 normed(float4 v, float2 of, const Gains *g, int j) {
#if LAYER_NORM
  return (v - of.x) * of.y * g->by[j] + g->shift[j];
#else
  return v * of.y * g->by[j];
#endif
}
/* Computes the input of stage 0, stage 2 or the head. `stream` holds the residual stream so far, `came` a part's result, to which the norm after
 * the part (POST) is applied. In both, each item has its own fours. */
static inline void take_stream(const Self *me, __local float4 *stream, __local float4 *came, int step, uint epoch, const Token *token,
                               __global const T *norms, float residual, float eps) {
  const int layer = step / STAGES, second = step < LAYERS * STAGES && step % STAGES == 2, at = second ? X_MID : X_IN;
  const uint of = second ? epoch : epoch - 1u & 0xffffu;
  const int before = PRE || step == LAYERS * STAGES;
  Gains gains;
  if (before) ask_gains(me, &gains, norms, layer * NORMS + second);
  if (step == 0) {
    for (int i = me->item; i < DIM / 4; i += ITEMS) stream[i] = token4(token, 4 * i);
  } else if (!PARALLEL || !second) {
#if POST
    Gains after;
    ask_gains(me, &after, norms, (second ? layer : layer - 1) * NORMS + 2 * PRE + !second);
    for (int i = me->item; i < DIM / 4; i += ITEMS) came[i] = wait4(me, at + 4 * i, read4(me->words + at + 4 * i), of);
    const float2 size = moments(me, came, me->warps + 2 * WARPS, eps);
    UNROLL for (int j = 0; j < EACH(DIM); ++j) {
      const int i = j * ITEMS + me->item;
      if (i < DIM / 4) stream[i] += residual * normed(came[i], size, &after, j);
    }
#else
    for (int i = me->item; i < DIM / 4; i += ITEMS) stream[i] = wait4(me, at + 4 * i, read4(me->words + at + 4 * i), of);
#endif
  }
  const float2 size = before ? moments(me, stream, me->warps, eps) : (float2)(0.0f);
  UNROLL for (int j = 0; j < EACH(DIM); ++j) {
    const int i = j * ITEMS + me->item, inside = i < DIM / 4;
    float4 v = (float4)(0.0f);
    if (inside) v = before ? normed(stream[i], size, &gains, j) : stream[i];
    put_input(me, DIM, i, v, inside);
  }
}
#endif
