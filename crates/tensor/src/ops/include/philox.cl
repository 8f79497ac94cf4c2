/* Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
 *
 * A generator is a 64-bit seed, the key, and a 64-bit offset. Its draw n, four words of 32 bits, is philox(counter {lo(offset + n), hi(offset +
 * n), 0, 0}, key {lo(seed), hi(seed)}). This is a pure function: a mask can be drawn again where it is needed again, and every device draws the
 * same stream.
 *
 * Element i of a tensor uses word (i % 64) / 16 of draw (i / 64) * 16 + i % 16: adjacent lanes fill adjacent elements. A tensor of n elements
 * uses 16 * ceil(n / 64) draws.
 *
 * With COUNTED a stream starts counter[0] draws later. This counter is in device memory and changes from step to step, so that a launch that is
 * repeated unchanged draws other numbers.
 */
#ifndef COUNTED
#define COUNTED 0
#endif
#if COUNTED
#define COUNTER_ARG , __global const ulong *counter
#define STREAM_START(offset) ((offset) + counter[0])
#else
#define COUNTER_ARG
#define STREAM_START(offset) (offset)
#endif

/* Defines NAME(c, key): counter c[4] in, four random words out. WORD is uint or a vector of it, with one counter per lane; HI(a, m) is the upper
 * half of the 64-bit product with a constant. */
#define PHILOX(NAME, WORD, HI)                                                                                         \
  static inline void NAME(WORD *c, uint2 key) {                                                                        \
    for (int round = 0; round < 10; ++round) {                                                                         \
      WORD h0 = HI(c[0], 0xD2511F53u), l0 = c[0] * 0xD2511F53u;                                                        \
      WORD h1 = HI(c[2], 0xCD9E8D57u), l1 = c[2] * 0xCD9E8D57u;                                                        \
      c[0] = h1 ^ c[1] ^ key.x;                                                                                        \
      c[1] = l1;                                                                                                       \
      c[2] = h0 ^ c[3] ^ key.y;                                                                                        \
      c[3] = l0;                                                                                                       \
      key += (uint2)(0x9E3779B9u, 0xBB67AE85u);                                                                        \
    }                                                                                                                  \
  }

#define HI_WORD(a, m) mul_hi((a), (uint)(m))
PHILOX(philox, uint, HI_WORD)

/* Computes the counter of draw n. */
static inline void philox_counter(uint *c, ulong offset, ulong n) {
  c[0] = (uint)(offset + n);
  c[1] = (uint)((offset + n) >> 32);
  c[2] = 0;
  c[3] = 0;
}

/* Lane numbers, and one draw per lane. The 64-bit product is written out, since PoCL computes mul_hi of vectors lane by lane. */
#if VW == 1
#define LANES 0u
#define HI_LANES HI_WORD
#else
#if VW == 2
#define LANES (UV)(0, 1)
#elif VW == 4
#define LANES (UV)(0, 1, 2, 3)
#elif VW == 8
#define LANES (UV)(0, 1, 2, 3, 4, 5, 6, 7)
#else
#define LANES (UV)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#endif
#define HI_LANES(a, m)                                                                                                 \
  TO_UV((CAT(convert_ulong, VW)(a) * (CAT(ulong, VW))((ulong)(m))) >> (CAT(ulong, VW))((ulong)32))
#endif
PHILOX(philox_lanes, UV, HI_LANES)

/* Returns draws n, n + 1, … in c[4], one per lane. */
static inline void philox_draw_lanes(UV *c, ulong seed, ulong offset, ulong n) {
  const uint low = (uint)(offset + n);
  c[0] = LANES + low;
  c[1] = (UV)((uint)((offset + n) >> 32)) + select((UV)(0u), (UV)(1u), c[0] < (UV)(low));
  c[2] = (UV)(0u);
  c[3] = (UV)(0u);
  philox_lanes(c, (uint2)((uint)seed, (uint)(seed >> 32)));
}
