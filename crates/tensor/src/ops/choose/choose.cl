/* choose: samples the next token of each text from its logits.
 *
 * logits (B, V) T; bias (V) float, added to the logits if BIASED: -infinity forbids a token. rules (B, 4, 3) uint: code, value, minimum number of
 * tokens. words (R, B) uint: random. state uint: tokens (B), positions (PLACES, 1 or B), counts (B), sampled (R, B). chosen (B) uint: a token,
 * 0xffffffff if the highest logit is NaN or infinite, 0xfffffffe if all are -infinity.
 * STAGE 0: V up to CHUNK, one work-group per text. Above, STAGE 1: group (g, b) writes the K highest-ranked tokens of chunk g of text b to
 * candidates (B, G, K); STAGE 2: group b samples from these. Text b uses word (counts[b] % R, b). With ADVANCE its token is written to tokens and
 * to sampled (counts[b] % R, b); its count and its position are incremented; one position of all texts once.
 *
 * A key has the logit, mapped to an integer of the same order, in its upper half and the inverted token id in its lower half: keys are unique, and
 * equal logits are ranked by token id. Weights and sums are integers (multiples of 2^-31 of the highest weight), so that results are bit-identical
 * on all devices and on the host (choose/rules.rs).
 *
 * Design: radix select (Alabi et al. 2012), ranks by counting, cuts by prefix sums (Hillis and Steele 1986).
 * Ceiling: reads the logits once; everything else is in local memory. Limited by launch latency and barriers.
 */
#ifndef STAGE
#define STAGE 0
#endif
#ifndef K
#define K 1
#endif
#ifndef CHUNK
#define CHUNK 2048
#endif
#ifndef BIASED
#define BIASED 0
#endif
#ifndef ADVANCE
#define ADVANCE 0
#endif
#ifndef PLACES
#define PLACES 1
#endif
#define BINS 256
/* A single item needs no barrier, and PoCL 3.1 cannot compile barriers within these loops. It also counts without atomics: on a CPU an atomic
 * addition takes about twenty cycles, and every element is counted. */
#if WG > 1
#define SYNC barrier(CLK_LOCAL_MEM_FENCE)
#define COUNT(place) atomic_inc(place)
#else
#define SYNC
#define COUNT(place) ((*(place))++)
#endif
#define RULES 4
#define PER ((K + WG - 1) / WG)
#define NO_NUMBER 0xffffffffu
#define NONE_LEFT 0xfffffffeu

#define TOP_K 1
#define TOP_P 2
#define MIN_P 3
#define TEMPERATURE 4

/* Maps floats to integers of the same order; NaN is the largest, -0 equals 0. */
static inline uint order_of(float v) {
  const uint bits = as_uint(v), u = bits << 1 == 0 ? 0 : bits;
  return isnan(v) ? 0xffffffffu : (u >> 31 ? ~u : u | 0x80000000u);
}
static inline float value_of(ulong key) {
  const uint u = (uint)(key >> 32);
  return as_float(u >> 31 ? u & 0x7fffffffu : ~u);
}

static inline float biased(__global const T *logits, __global const float *bias, ulong i) {
  const float v = LD(logits, i);
#if BIASED
  const float b = bias[i];
  const float sum = v + b;
  /* Clamped, as on the host; infinite logits are reported. */
  return b == -INFINITY || v == -INFINITY ? -INFINITY : (sum > FLT_MAX && v <= FLT_MAX ? FLT_MAX : sum);
#else
  return v;
#endif
}

#if STAGE == 2
#define KEY_AT(i) keys[i]
#define KEYS __global const ulong *keys
#else
#define KEY_AT(i) ((ulong)keys[i] << 32 | (uint)~(first + (i)))
#define KEYS __local const uint *keys, const uint first
#endif

/* Exclusive prefix sum of `own` over the items of the group; `all` gets the total. */
static ulong scan(ulong own, __local ulong *sums, ulong *all) {
  const uint l = get_local_id(0);
  sums[l] = own;
  SYNC;
  for (uint h = 1; h < WG; h *= 2) {
    const ulong before = l >= h ? sums[l - h] : 0;
    SYNC;
    sums[l] += before;
    SYNC;
  }
  *all = sums[WG - 1];
  const ulong before = sums[l] - own;
  SYNC;
  return before;
}

#if K > 1
/* The bin of the `wanted`-th largest element (1, 2, ...), the same for all items; the number of elements in higher bins is subtracted from
 * `wanted`. */
static uint pick(__local uint *bins, __local uint *found, uint *wanted) {
  uint bin = BINS - 1, left = *wanted;
#if WG > 1
  for (uint h = 1; h < BINS; h *= 2) {
    uint more[(BINS + WG - 1) / WG];
    for (uint b = get_local_id(0), k = 0; b < BINS; b += WG, k++) more[k] = b + h < BINS ? bins[b + h] : 0;
    SYNC;
    for (uint b = get_local_id(0), k = 0; b < BINS; b += WG, k++) bins[b] += more[k];
    SYNC;
  }
  /* Each bin now counts itself and all higher bins. */
  for (uint b = get_local_id(0); b < BINS; b += WG)
    if (bins[b] >= left && (b == BINS - 1 || bins[b + 1] < left)) *found = b;
  SYNC;
  bin = *found;
  left -= bin < BINS - 1 ? bins[bin + 1] : 0;
#else
  while (bin > 0 && bins[bin] < left) left -= bins[bin--];
#endif
  *wanted = left;
  return bin;
}

/* Lower bound of the K largest keys; 0 if there are at most K. */
static ulong bound_of(KEYS, uint n, __local uint *bins, __local uint *found) {
  if (n <= K) return 0;
  ulong bound = 0;
  uint wanted = K;
  for (int shift = 56; shift >= 0; shift -= 8) {
    for (uint b = get_local_id(0); b < BINS; b += WG) bins[b] = 0;
    SYNC;
    const ulong above = shift == 56 ? 0 : ~(ulong)0 << (shift + 8);
    for (uint i = get_local_id(0); i < n; i += WG) {
      const ulong key = KEY_AT(i);
      if ((key & above) == bound) COUNT(bins + (uint)(key >> shift & 255));
    }
    SYNC;
    const uint bin = pick(bins, found, &wanted);
#if WG > 1
    const uint share = bins[bin] - (bin < BINS - 1 ? bins[bin + 1] : 0);
#else
    const uint share = bins[bin];
#endif
    bound |= (ulong)bin << shift;
    SYNC;
    if (share == wanted) break;
  }
  return bound;
}
#endif

/* Writes the K largest keys in any order, padded with 0, and returns their number. */
static uint largest(KEYS, uint n, __local ulong *kept, __local uint *bins, __local ulong *sums) {
  const uint l = get_local_id(0);
#if K > 1
  __local uint *found = bins + BINS;
#if STAGE == 2
  const ulong bound = bound_of(keys, n, bins, found);
#else
  const ulong bound = bound_of(keys, first, n, bins, found);
#endif
  for (uint i = l; i < K; i += WG) kept[i] = 0;
  if (l == 0) *found = 0;
  SYNC;
  for (uint i = l; i < n; i += WG) {
    const ulong key = KEY_AT(i);
    if (key >= bound) kept[COUNT(found)] = key;
  }
  SYNC;
  return *found;
#else
  ulong most = 0;
  for (uint i = l; i < n; i += WG) {
    const ulong key = KEY_AT(i);
    most = max(most, key);
  }
  sums[l] = most;
  SYNC;
  for (uint h = WG / 2; h > 0; h >>= 1) {
    if (l < h) sums[l] = max(sums[l], sums[l + h]);
    SYNC;
  }
  if (l == 0) kept[0] = sums[0];
  SYNC;
  return 1;
#endif
}

#if STAGE < 2
/* Loads a chunk of logits as ordered integers. */
static uint load(__global const T *logits, __global const float *bias, ulong first, ulong v, __local uint *orders) {
  const uint n = (uint)min((ulong)CHUNK, v - first);
  for (uint i = get_local_id(0); i < n; i += WG) orders[i] = order_of(biased(logits, bias, first + i));
  SYNC;
  return n;
}
#endif

#if STAGE == 1
__kernel void choose_chunks(__global const T *restrict logits, __global const float *restrict bias, __global ulong *restrict candidates,
                            ulong v) {
  __local uint orders[CHUNK], bins[BINS + 1];
  __local ulong kept[K], sums[WG];
  const ulong b = get_group_id(1), first = get_group_id(0) * (ulong)CHUNK;
  const uint n = load(logits + b * v, bias, first, v, orders);
  largest(orders, (uint)first, n, kept, bins, sums);
  __global ulong *to = candidates + (b * get_num_groups(0) + get_group_id(0)) * K;
  for (uint i = get_local_id(0); i < K; i += WG) to[i] = kept[i];
}
#else

#if K > 1
/* 2^31 * exp2(factor * (logit - top)). */
static uint weight(ulong key, float top, float factor) {
  if (key == 0) return 0;
  const float below = (value_of(key) - top) * factor;
  const uint q = (uint)-convert_int_sat_rte(fmax(below, -40.0f) * 1048576.0f), whole = q >> 20;
  if (whole > 31) return 0;
  /* exp(-x) for x below ln 2 by its Taylor series in Horner's form; x and 1 / k in multiples of 2^-32. */
  const uint x = mul_hi((q & 0xfffffu) << 12, 2977044472u);
  uint t = 0x80000000u;
  for (uint k = 9; k > 1; k--) t = 0x80000000u - mul_hi(mul_hi(x, t), 0xffffffffu / k);
  return (0x80000000u - mul_hi(x, t)) >> whole;
}

/* The first rank whose cumulative weight exceeds `target` (with `reached`: is at least `target`); `kept` without one. */
static uint place_of(ulong target, int reached, ulong own, ulong before, uint kept, const uint *weights, __local uint *found) {
  const uint l = get_local_id(0);
  if (l == 0) *found = kept;
  SYNC;
  ulong sum = before;
  for (uint i = 0; i < PER; i++) {
    sum += weights[i];
    if (l * PER + i < kept && (sum > target || (reached && sum == target))) {
      atomic_min(found, l * PER + i);
      break;
    }
  }
  SYNC;
  const uint place = *found;
  SYNC;
  return place;
}

/* Applies the rules to `count` ranked keys and draws a rank with the random word. */
static uint drawn(__local const ulong *ranked, uint count, __global const uint *rules, uint word, __local uint *found, __local ulong *sums) {
  const uint l = get_local_id(0);
  const float top = value_of(ranked[0]);
  float factor = 1.442695041f;
  uint kept = count, weights[PER];
  for (uint r = 0; r <= RULES; r++) {
    const uint code = r < RULES ? rules[3 * r] : 0, value = r < RULES ? rules[3 * r + 1] : 0, least = r < RULES ? rules[3 * r + 2] : 0;
    if (code == TOP_K) kept = min(kept, value);
    if (code == TEMPERATURE) factor = as_float(value);
    if (code == TOP_K || code == TEMPERATURE || (code == 0 && r < RULES)) continue;
    ulong own = 0, all;
    for (uint i = 0; i < PER; i++) {
      const uint rank = l * PER + i;
      weights[i] = rank < kept ? weight(ranked[rank], top, factor) : 0;
      own += weights[i];
    }
    const ulong before = scan(own, sums, &all);
    if (code == TOP_P) {
      /* `value` is in multiples of 2^-20. */
      const ulong share = all * value, target = (share + 0xfffffu) >> 20;
      const uint place = place_of(target, 1, own, before, kept, weights, found);
      kept = max(min(place + 1, kept), min(least, kept));
    } else if (code == MIN_P) {
      if (l == 0) *found = kept;
      SYNC;
      for (uint i = 0; i < PER; i++)
        if (l * PER + i < kept && weights[i] < value) {
          atomic_min(found, l * PER + i);
          break;
        }
      SYNC;
      kept = max(max(*found, 1u), min(least, kept));
      SYNC;
    } else {
      const ulong target = (all >> 32) * word + ((all & 0xffffffffu) * word >> 32);
      return place_of(target, 0, own, before, kept, weights, found);
    }
  }
  return 0;
}
#endif

__kernel void choose(__global const T *restrict logits, __global const float *restrict bias, __global const ulong *restrict candidates,
                     __global const uint *restrict rules, __global const uint *restrict words, __global uint *state,
                     __global uint *restrict chosen, ulong v, uint texts, uint rounds) {
  __local uint bins[BINS + 1];
  __local ulong kept[K], ranked[K], sums[WG];
  __local uint drawn_before;
  const uint l = get_local_id(0), b = get_group_id(0);
#if STAGE == 0
  __local uint orders[CHUNK];
  const uint n = load(logits + b * v, bias, 0, v, orders);
  const uint count = largest(orders, 0, n, kept, bins, sums);
#else
  const uint n = (uint)((v + CHUNK - 1) / CHUNK) * K;
  const uint count = largest(candidates + (ulong)b * n, n, kept, bins, sums);
#endif
  __global uint *counts = state + texts + PLACES, *sampled = counts + texts;
  /* Only item 0 reads and writes the count, because a local barrier does not order global memory. */
  if (l == 0) drawn_before = counts[b];
  for (uint a = l; a < K; a += WG) ranked[a] = 0;
  SYNC;
  for (uint a = l; a < count; a += WG) {
    const ulong key = kept[a];
    uint before = 0;
    for (uint i = 0; i < count; i++) before += kept[i] > key;
    if (key != 0) ranked[before] = key;
  }
  SYNC;
  const uint round = drawn_before % rounds;
  uint rank = 0;
#if K > 1
  rank = drawn(ranked, count, rules + b * 3 * RULES, words[round * texts + b], bins + BINS, sums);
  /* Invalid logits do not have a valid rank. */
  rank = min(rank, count - 1);
#endif
  if (l == 0) {
    const float top = value_of(ranked[0]);
    const uint token = isnan(top) || top == INFINITY ? NO_NUMBER : (top == -INFINITY ? NONE_LEFT : ~(uint)ranked[rank]);
    chosen[b] = token;
#if ADVANCE
    state[b] = token;
    sampled[round * texts + b] = token;
    counts[b] = drawn_before + 1;
    if (b < PLACES) state[texts + b] += 1;
#endif
  }
}
#endif
