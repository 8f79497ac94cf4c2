/* Shared parts of the decode_attention kernels: the formula, the sizes, and the preparation of queries and new keys.
 *
 * T_LEN new tokens of each text are added to a cache with the keys and values of the earlier tokens. Their number is in device memory: p =
 * position[position_off + b * position_step].
 *   q, k, v   the new tokens' parts of qkv; with QK_NORM, q and k of each head go through a root-mean-square norm (factor gamma, or
 *             1 + gamma with UNIT); with HALF > 0, their first 2 HALF elements are rotated by the angles of row p + t of the tables
 *   cache     k and v of token t are written to row p + t
 *   o         softmax(scale * q keysᵀ) values over rows 0 to p + t, or over the last WINDOW of them; with SOFTCAP scores are
 *             cap * tanh(score / cap)
 * Rows: the GROUP = H / KH query heads that share a key head form one list of T_LEN * GROUP rows, row = t*GROUP + g. A token without room, p + t
 * >= room, is not written, and its result is NaN.
 *
 * qkv       (B, T_LEN, (H + 2 KH) D) T at qkv_off, rows qkv_t apart, texts qkv_b
 * cache     (B, room, 2 KH, D) T at cache_off, keys before values; texts cache_b apart, rows cache_s, heads cache_h
 * With PAGE the cache is (P, PAGE, 2 KH, D), pages are cache_b apart, and row s of text b is row s % PAGE of page pages[b][s / PAGE]; room is
 * PAGE times the number of pages per text. Two texts may share pages that neither of them writes.
 * With Q8 the last axis of the cache is an 8-bit row (q8_row.cl), and new keys and values are rounded to it.
 * pages     (B, room / PAGE) uint at pages_off, lines pages_b apart, with PAGE
 * position  uint
 * cosines, sines  (at least room, HALF) f32, with HALF
 * gamma_q, gamma_k  (D) T, with QK_NORM, and eps
 * o         (B, T_LEN, H D) T, dense
 * part      (splits, B * KH, rows, D + 2) f32: the sums over a share of the keys, without the common factor; the highest score; and
 *           the sum of exponentials
 * Shares: the visible keys are divided between `splits` groups in whole blocks of BK, so every run gives the same bits.
 *
 * Defines: D (1 to 256), GROUP, T_LEN, HALF, QK_NORM, UNIT, WINDOW (0: all keys), SOFTCAP, DTYPE, ROWS (of the list, per group), PAGE (0: a
 * cache without pages), Q8.
 */
#ifndef D
#define D 64
#endif
#ifndef GROUP
#define GROUP 1
#endif
#ifndef T_LEN
#define T_LEN 1
#endif
#ifndef HALF
#define HALF 0
#endif
#ifndef QK_NORM
#define QK_NORM 0
#endif
#ifndef UNIT
#define UNIT 0
#endif
#ifndef WINDOW
#define WINDOW 0
#endif
#ifndef SOFTCAP
#define SOFTCAP 0
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef PAGE
#define PAGE 0
#endif
#ifndef Q8
#define Q8 0
#endif
#define ALL_ROWS (T_LEN * GROUP)
#define CHUNKS_OF_ROWS ((ALL_ROWS + ROWS - 1) / ROWS)
#define PART (D + 2)
/* Initial maximum score, above -FLT_MAX: a masked score gives 0 even if no key was visible yet. */
#define NEG (-FLT_MAX)
#define NONE (0.97f * NEG)
#define LOG2_E 1.44269504f

#if SOFTCAP
#define CAP_ARG , float cap
#define FACTOR (scale / cap)
#define CAPPED(s) ((cap * LOG2_E) * tanh(s))
#else
#define CAP_ARG
#define FACTOR (scale * LOG2_E)
#define CAPPED(s) (s)
#endif
#if HALF
#define ROTARY_ARGS , __global const float *restrict cosines, __global const float *restrict sines
#else
#define ROTARY_ARGS
#endif
#if QK_NORM
#define NORM_ARGS , __global const T *restrict gamma_q, __global const T *restrict gamma_k, float eps
#else
#define NORM_ARGS
#endif

#if PAGE
#define PAGE_ARGS , __global const uint *restrict pages, uint pages_off, uint pages_b
#define ROW_AT(s) (pages[(uint)(s) / PAGE] * cache_b + (uint)(s) % PAGE * cache_s)
#define FIRST_ROW(b) ((ulong)0)
#define PAGES_OF(b) pages += pages_off + (b)*pages_b
#else
#define PAGE_ARGS
#define ROW_AT(s) ((ulong)(s) * cache_s)
#define FIRST_ROW(b) ((b)*cache_b)
#define PAGES_OF(b)
#endif
/* Element type of the cache. */
#if Q8
typedef uint C;
#else
typedef T C;
#endif

/* Visible keys are [first, end). The first of the T_LEN new tokens is at p, and `fits` of them have room. */
typedef struct {
  int p, fits, first, end;
} seen_t;

static inline seen_t seen_of(__global const uint *position, uint step, ulong b, int room) {
  seen_t s;
  s.p = (int)min(position[b * step], (uint)room);
  s.fits = min(T_LEN, room - s.p); /* new tokens that have room */
  s.end = s.p + s.fits;
#if WINDOW
  s.first = max(0, s.p + 1 - WINDOW);
#else
  s.first = 0;
#endif
  if (s.fits <= 0) s.fits = s.first = s.end = 0;
  return s;
}

/* Returns the keys per share, in whole blocks of `block`. */
static inline int share_of(seen_t s, int splits, int block) {
  const int blocks = (s.end - s.first + block - 1) / block;
  return (blocks + splits - 1) / splits * block;
}

/* Returns whether query t of the new tokens sees key s. */
static inline int sees(seen_t seen, int t, int s) {
#if WINDOW
  if (s < seen.p + t + 1 - WINDOW) return 0;
#endif
  return s <= seen.p + t;
}

/* Rounds a number to T. */
static inline float stored(float x) {
#if DTYPE == 1
  ushort h;
  vstore_half_rte(x, 0, (half *)&h);
  return vload_half(0, (const half *)&h);
#elif DTYPE == 2
  return of_bf16(bf16_of(x));
#else
  return x;
#endif
}
