/* Asynchronous copies (cp.async) of tiles from memory to local memory, a part of matmul_tile.cl with ASYNC: NVIDIA from sm_80 on, f32. That file
 * has the operands, sizes and defines.
 *
 * SEND_BOTH(s, left)  starts the copies of the next BK steps of A (BM lines) and B (BN lines) into buffer s. Elements past the matrices and past the
 *                     last `left` steps become zeros. All items of the group call it, and each copies the same number of elements.
 * TURNED              the permutation of lines that the reader of a tile must undo
 *
 * Without ASYNC only TURNED is defined, and it is 0.
 */
#if ASYNC
/* Copies `bytes` of 16 or 4 bytes from `from`, fills the rest with zeros, and advances `from`. The addition is written in assembly, because the
 * compiler would keep one pointer for each copy of a slice, and spill registers. */
#define COPY(SIZE, CACHE, to, from, bytes, walk)                                                              \
  asm volatile("cp.async." CACHE ".shared.global [%1], [%0], " SIZE ", %2;\n\tadd.s64 %0, %0, %3;"            \
               : "+l"(from)                                                                                   \
               : "r"((uint)(size_t)(to)), "r"(bytes), "l"((walk) * 4L)                                         \
               : "memory")
/* An item's first position in a slice; the others are LINES_APART lines or STEPS_APART steps further. If k is contiguous, elements are copied
 * one by one, and adjacent elements along k are LD_TILE apart, in eight different banks. In every eighth step the four lines of a float4 are
 * permuted, so that 32 banks are used. Lines that are a multiple of four apart are not affected. The permutation is undone at the addition to
 * the sums. */
#define TURNED(step, ALONG_K) ((ALONG_K) ? (step) >> 3 & 3 : 0)
#define LINES_APART (ITEMS / BK)
#define STEPS_APART(SIDE) (ITEMS / (SIDE / 4))
#define PLACE(SIDE, ALONG_K) ((ALONG_K) ? item / BK : item % (SIDE / 4) * 4)
#define STEP(SIDE, ALONG_K) ((ALONG_K) ? item % BK : item / (SIDE / 4))
#define SEND(tile, LD_TILE, from, line, lines, line_stride, k_stride, SIDE, ALONG_K, left)                    \
  {                                                                                                           \
    __global const float *next = from;                                                                        \
    const int place = PLACE(SIDE, ALONG_K), step = STEP(SIDE, ALONG_K);                                       \
    if (ALONG_K) {                                                                                            \
      __local float *to = (tile) + step * (LD_TILE) + (place ^ TURNED(step, 1));                                  \
      UNROLL for (int i = 0; i < SIDE / LINES_APART; ++i)                                                     \
        COPY("4", "ca", to + i * LINES_APART, next,                                                           \
             WHOLE_TILES || ((line) + place + i * LINES_APART < (lines) && step < (left)) ? 4 : 0,                   \
             LINES_APART * (line_stride));                                                                    \
    } else {                                                                                                  \
      const int bytes = WHOLE_TILES ? 16 : min(max(((lines) - (line) - place) * 4, 0), 16);                          \
      __local float *to = (tile) + step * (LD_TILE) + place;                                                  \
      UNROLL for (int i = 0; i < BK / STEPS_APART(SIDE); ++i)                                                 \
        COPY("16", "cg", to + i * STEPS_APART(SIDE) * (LD_TILE), next,                                        \
             WHOLE_TILES || step + i * STEPS_APART(SIDE) < (left) ? bytes : 0, STEPS_APART(SIDE) * (k_stride));      \
    }                                                                                                         \
    from += SLICES * BK * (k_stride);                                                                         \
  }
/* Copies the next slice into buffer s; `left` steps of the sum remain from it on. */
#define SEND_BOTH(s, left)                                                                                    \
  SEND(as(s), LDA, from_a, m0, m, a_rs, a_cs, BM, A_ALONG_K, left)                                            \
  SEND(bs(s), LDB, from_b, n0, n, b_cs, b_rs, BN, B_ALONG_K, left)
#else
#define TURNED(step, ALONG_K) 0
#endif
