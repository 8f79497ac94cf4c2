/* Epilogues of matmul_wgmma_sm90.cl, with that kernel's arguments and defines: C and aux from the sums in registers. There are three ways:
 *
 *   store_boxes    STAGED: through local memory, box by box, sent and fetched by TMA
 *   store_pairs    unaligned rows of C (C_LANES 1 or 2): each lane stores its two adjacent elements
 *   store_eights   otherwise: four lanes exchange theirs, so that each stores and reads eight adjacent elements, 16 bytes; the only one that
 *                  supports a generated expression (epilogue.cl), over rows of M and columns of N
 */
#if SPLIT < 2
/* Applies the epilogue to two adjacent sums. `pair` is that of aux or C at this position; with GELU, it receives aux. */
INLINE float2 finish(float2 sum, uint *pair) {
#if ADD_C || RESIDUAL
  sum += unpack(*pair);
#elif GELU_GRAD
  const float2 x = unpack(*pair);
  sum.x *= gelu_tanh_grad(x.x), sum.y *= gelu_tanh_grad(x.y);
#elif GELU
  /* Computed from the rounded value, which the backward reads. */
  *pair = pack(sum.x, sum.y);
  sum = unpack(*pair);
  sum.x = gelu_tanh(sum.x), sum.y = gelu_tanh(sum.y);
#endif
  return sum;
}
INLINE __global T *read_from(const Product *p) { return ADD_C ? p->c : p->aux; }

#if STAGED
/* A warp's 16 rows of a block of 64 are HALVES boxes. Boxes of one column are consecutive, since they share a bias. */
#define HALVES (16 / BOX_ROWS)
#define COLUMN (MT * HALVES)
#define BOXES (BN / 64 * COLUMN)
/* Boxes that are sent per box of the tile: C's, and with GELU aux's. */
#define SENT (1 + GELU)
/* Four matrices of 8 by 8 at a time: 16 rows by 16 columns or 8 by 32. Addresses of step t are those of step 0 with some bits flipped. */
#define MATRICES (BOX_ROWS / 4)
INLINE uint matrix_step(int t) { return t * (HALVES == 1 ? 32 : 64); }
/* Position of box b of output o in local memory, its first column and row. */
INLINE uint box_at(uint boxes, int b, int o) { return boxes + (b * SENT + o) % STAGED * BOX_BYTES; }
INLINE int box_x(const Work *work, int b) { return work->bn * BN + b / COLUMN * 64; }
INLINE int box_y(const Work *work, int row_block, int b) {
  return work->bm * BM + (row_block + b / HALVES % MT) * 64 + (get_local_id(0) >> 5 & 3) * 16 + b % HALVES * 8;
}
/* Returns how many boxes per tile use the buffer of box b, and the ordinal of its fill for box b after `tiles` tiles. */
INLINE uint fills_of(int b) { return (BOXES - b % STAGED + STAGED - 1) / STAGED; }
INLINE uint fill_of(int b, uint tiles) { return b / STAGED + fills_of(b) * tiles; }
/* Returns this warp's boxes and their barriers. Computed where they are used, since registers are scarce. */
INLINE uint boxes_of(const Place *at, uint id) { return at->boxes + (id / 32 - 4) * (STAGED * BOX_BYTES); }
INLINE uint loaded_of(const Place *at, uint id) { return at->loaded + (id / 32 - 4) * (STAGED * 8); }
/* Returns the map of C; aux's is the next. */
INLINE ulong map_of_c(const Product *p) { return p->maps + 256; }
INLINE void load_box(const Product *p, const Work *work, int row_block, uint boxes, uint loaded, int b) {
  ask(box_at(boxes, b, 0), ADD_C ? map_of_c(p) : map_of_c(p) + 128, box_x(work, b), box_y(work, row_block, b), loaded + b % STAGED * 8,
      BOX_BYTES);
}
#if READS
/* Requests the first boxes that the epilogue reads, before a tile's products. */
INLINE void load_first_boxes(const Place *at, const Product *p, const Tiles *t, const Work *work, int row_block) {
  if ((get_local_id(0) & 31) == 0 && is_whole(work, t)) {
    const uint id = local_id(), boxes = boxes_of(at, id), loaded = loaded_of(at, id);
    BOXES_LEFT(0);
    UNROLL for (int b = 0; b < STAGED && b < BOXES; b++) load_box(p, work, row_block, boxes, loaded, b);
  }
  warp_sync();
}
#endif

/* Stores a tile to C and aux. `tiles` is the number of tiles that the warp has stored before, which gives the barriers' phases. */
INLINE void store_boxes(float (*acc)[BN / 2], const Place *at, const Product *p, const Work *work, int row_block, uint tiles) {
  const int lane = get_local_id(0) & 31, quad = lane & 3;
  const ulong map_c = map_of_c(p);
#if !READS
  if (lane == 0) BOXES_LEFT(0);
  warp_sync();
#endif
  const uint id = local_id(), boxes = boxes_of(at, id), r = id & 7, matrix = id >> 3 & 3;
  /* Start of this lane's row of four matrices within a box. */
  const uint place = r * 128 + (HALVES == 1 ? (matrix & 1) * 1024 + ((matrix >> 1 ^ r) << 4) : (matrix ^ r) << 4);
#if READS
  const uint loaded = loaded_of(at, id);
#endif
#if BIAS
  uint beside[8];
#endif
  UNROLL for (int b = 0; b < BOXES; b++) {
    const int i = b / HALVES % MT, j0 = b / COLUMN * 8;
#if BIAS
    if (b % COLUMN == 0) {
      UNROLL for (int j = 0; j < 8; j++) beside[j] = load_word(p->bias + box_x(work, b) + j * 8 + quad * 2, box_x(work, b) + j * 8 < p->n);
    }
#endif
    uint x[8]; /* of C or aux; with GELU, four for aux */
#if READS
    mbar_wait(loaded + b % STAGED * 8, fill_of(b, tiles) & 1);
    warp_sync();
    matrices_load(x, box_at(boxes, b, 0) + place);
#else
    if ((b + 1) * SENT > STAGED) {
      if (lane == 0) BOXES_LEFT(STAGED - SENT);
      warp_sync();
    }
#endif
    UNROLL for (int t = 0; t < MATRICES; t++) {
      uint v[4];
#if READS
      if (t + 1 < MATRICES) matrices_load(x + (t + 1) % 2 * 4, (box_at(boxes, b, 0) + place) ^ matrix_step(t + 1));
#endif
      UNROLL for (int e = 0; e < 4; e++) {
        const int j = HALVES == 1 ? t * 2 + e / 2 : t * 4 + e, at_sum = (j0 + j) * 4 + (HALVES == 1 ? e % 2 : b % 2) * 2;
        float2 y = (float2)(acc[i][at_sum], acc[i][at_sum + 1]) * p->alpha;
#if BIAS
        y += unpack(beside[j]);
#endif
        y = finish(y, x + (GELU ? e : t % 2 * 4 + e));
        v[e] = pack(y.x, y.y);
      }
      matrices_store((box_at(boxes, b, 0) + place) ^ matrix_step(t), v);
#if GELU
      matrices_store((box_at(boxes, b, 1) + place) ^ matrix_step(t), x);
#endif
    }
    box_written();
    warp_sync();
    if (lane == 0) {
      send(map_c, box_x(work, b), box_y(work, row_block, b), box_at(boxes, b, 0));
#if GELU
      send(map_c + 128, box_x(work, b), box_y(work, row_block, b), box_at(boxes, b, 1));
#endif
#if READS
      /* The previous box had the time of this one to leave. */
      if (b > 0 && b - 1 + STAGED < BOXES) {
        BOXES_LEFT(1);
        load_box(p, work, row_block, boxes, loaded, b - 1 + STAGED);
      }
#endif
    }
  }
}

#elif C_LANES < 8
/* Loads two adjacent elements, of which `left` are inside. */
INLINE uint load_pair(__global const T *from, int left) { return C_LANES == 1 ? load_ones(from, left) : load_word(from, left > 0); }
INLINE void store_pair(__global T *to, int left, uint v) {
  if (C_LANES == 1) store_ones(to, left, v);
  else store_word(to, left > 0, v);
}
INLINE void store_pairs(float (*acc)[BN / 2], const Product *p, const Work *work, int row_block) {
  const int quad = get_local_id(0) & 3, n = p->n;
  UNROLL for (int i = 0; i < MT; i++)
    UNROLL for (int s = 0; s < BN / 4; s++) {
      const int low = s / (BN / 8), j = s % (BN / 8);
      const int row = row_of(work, row_block, i) + low * 8;
      const int col = work->bn * BN + j * 8 + quad * 2, left = row < p->m ? n - col : 0;
      const size_t to = (size_t)row * n + col;
      float2 y = (float2)(acc[i][j * 4 + low * 2], acc[i][j * 4 + low * 2 + 1]) * p->alpha;
      uint x = 0;
#if READS
      x = load_pair(read_from(p) + to, left);
#endif
#if BIAS
      y += unpack(load_pair(p->bias + col, n - col));
#endif
      y = finish(y, &x);
      store_pair(p->c + to, left, pack(y.x, y.y));
#if GELU
      store_pair(p->aux + to, left, x);
#endif
    }
}

#else
/* Steps of a block of 64 rows: two rows, eight adjacent elements each. EARLY steps of reads are in flight at any time, since memory has a
 * latency of a microsecond. */
#define STEPS (BN / 16)
#ifndef EARLY
#define EARLY 4
#endif
/* Address of step s relative to the item's first element of the block, and whether it is inside. */
typedef struct {
  size_t above, below;
  int row0, col0, m, n;
} Eights;
INLINE size_t place_of(const Eights *at, int s) { return (s % 2 ? at->below : at->above) + s / 2 * 32; }
#if CONV
/* row0 is 0 if the upper row is inside the result, and m is 0 if the lower row is. */
INLINE int is_inside(const Eights *at, int s) { return (s % 2 ? at->m : at->row0) == 0 && at->col0 + s / 2 * 32 < at->n; }
#else
INLINE int is_inside(const Eights *at, int s) { return (s % 2 ? at->row0 + 8 : at->row0) < at->m && at->col0 + s / 2 * 32 < at->n; }
#endif

#ifdef TREE
/* Applies a generated expression to eight adjacent elements of a row, which are rounded to C's type before. */
INLINE void tree_of_eight(uint *v, ulong row, ulong column, ulong n TREE_PARAMETERS) {
  UNROLL for (int h = 0; h < 2; h++) {
    float4 y = (float4)(unpack(v[2 * h]), unpack(v[2 * h + 1]));
    y = TREE_V(y, row, column + 4 * h, n);
    v[2 * h] = pack(y.x, y.y), v[2 * h + 1] = pack(y.z, y.w);
  }
}
#endif

INLINE void store_eights(float (*acc)[BN / 2], const Product *p, const Work *work, int row_block TREE_PARAMETERS) {
  const int quad = get_local_id(0) & 3;
  UNROLL for (int i = 0; i < MT; i++) {
    Eights at;
    at.n = p->n, at.col0 = work->bn * BN + quad * 8;
#if CONV
    const int r = row_of(work, row_block, i) - work->bm * BM;
    const long above = line_of(&p->pixels, work, r), below = line_of(&p->pixels, work, r + 8);
    at.row0 = above < 0, at.m = below < 0;
    at.above = above + at.col0, at.below = below + at.col0;
#ifdef TREE
    /* Pixels are consecutive in this case. */
    const ulong rows[2] = {above / p->n, below / p->n};
#endif
#else
    at.m = p->m, at.row0 = row_of(work, row_block, i);
    at.above = (size_t)at.row0 * p->n + at.col0, at.below = at.above + (size_t)8 * p->n;
#ifdef TREE
    const ulong rows[2] = {at.row0, at.row0 + 8};
#endif
#endif
    __global const T *bias_at = p->bias + work->bn * BN + quad * 2;
#if READS
    uint4 read[EARLY];
    UNROLL for (int s = 0; s < EARLY; s++) read[s] = load16(read_from(p) + place_of(&at, s), is_inside(&at, s));
#endif
    UNROLL for (int s = 0; s < STEPS; s++) {
      const int j = s / 2 * 4;
      uint v[4], x[4];
#if READS
      x[0] = read[s % EARLY].x, x[1] = read[s % EARLY].y, x[2] = read[s % EARLY].z, x[3] = read[s % EARLY].w;
      if (s + EARLY < STEPS) read[s % EARLY] = load16(read_from(p) + place_of(&at, s + EARLY), is_inside(&at, s + EARLY));
      exchange(x, quad);
#endif
      UNROLL for (int e = 0; e < 4; e++) {
        float2 y = (float2)(acc[i][(j + e) * 4 + s % 2 * 2], acc[i][(j + e) * 4 + s % 2 * 2 + 1]) * p->alpha;
#if BIAS
        y += unpack(load_word(bias_at + (j + e) * 8, work->bn * BN + (j + e) * 8 < p->n));
#endif
        y = finish(y, x + e);
        v[e] = pack(y.x, y.y);
      }
      exchange(v, quad);
#ifdef TREE
      if (is_inside(&at, s)) tree_of_eight(v, rows[s % 2], at.col0 + s / 2 * 32, p->n TREE_ARGUMENTS);
#endif
      store16(p->c + place_of(&at, s), is_inside(&at, s), v);
#if GELU
      exchange(x, quad);
      store16(p->aux + place_of(&at, s), is_inside(&at, s), x);
#endif
    }
  }
}
#endif
#endif
