/* The order of work in matmul_wgmma_sm90.cl: which group computes what, and when. SPLIT, STREAM_K and GROUP_M are its defines. Plain OpenCL C.
 *
 * An item of work is a tile of C, or a part of one along k. Without STREAM_K each tile has `splits` items, at most one per block, because a part
 * without blocks would take another's turn. Item w belongs to group w % groups. Bands of GROUP_M tile rows keep concurrent work close together
 * in A and B:
 *
 *   tile numbers, 5 rows and 3 columns, GROUP_M 2      0 2 4
 *                                                      1 3 5
 *                                                      6 8 10
 *                                                      7 9 11
 *                                                      12 13 14
 *
 * Design: CUTLASS's threadblock rasterization; stream-K (Osama et al. 2023, arXiv:2301.03598).
 */
/* Tiles of C (rows, columns), blocks of each tile's sum, and the maximum number of items that share a tile. The loops count items from the
 * group's number to `works` in steps of the number of groups. */
typedef struct {
  int rows, cols, blocks, splits, works;
} Tiles;
/* A tile's row, column and number. `split` is the index of the item within its tile, `first` and `count` are its part of k in blocks. It begins
 * at block `begin` and wraps around at the end of its part. */
typedef struct {
  int bm, bn, tile, split, first, count, begin;
} Work;

#if STREAM_K
/* Returns the start of a group's run in the sequence of all tiles' blocks. */
static inline int run_of(const Tiles *t, int group) {
  return (int)((long)group * t->rows * t->cols * t->blocks / (int)get_num_groups(0));
}
#endif
static inline Tiles tiles_of(int rows, int cols, int blocks, int splits) {
  Tiles t;
  t.rows = rows, t.cols = cols, t.blocks = blocks, t.splits = splits;
#if STREAM_K
  /* One item for each tile that this group's run touches. */
  const int group = get_group_id(0), groups = get_num_groups(0);
  t.works = group + groups * ((run_of(&t, group + 1) - 1) / blocks - run_of(&t, group) / blocks + 1);
#else
  t.works = rows * cols * (SPLIT ? splits : 1);
#endif
  return t;
}
static inline Work work_of(int w, const Tiles *t) {
  Work r;
  const int tiles = t->rows * t->cols, blocks = t->blocks;
#if STREAM_K
  /* The last tile comes first: the part that the next group waits for is then done when this group's wait begins. */
  const int group = get_group_id(0), begin = run_of(t, group), end = run_of(t, group + 1);
  r.tile = (end - 1) / blocks - w / (int)get_num_groups(0);
  r.split = group - (int)((((long)r.tile * blocks + 1) * (int)get_num_groups(0) - 1) / (tiles * blocks));
  r.first = max(begin - r.tile * blocks, 0);
  r.count = min(end - r.tile * blocks, blocks) - r.first;
  /* Groups that read the same rows of A or columns of B should read the same blocks at the same time, so that memory is read once. At any time
   * all are at the same block, counted modulo a run's length. */
  const int run = max(end - begin, 1), done = max(end - (r.tile + 1) * blocks, 0), ahead = (done % run - r.first % run + run) % run;
  r.begin = r.first + (ahead < r.count ? ahead : 0);
#else
  r.split = SPLIT ? w / tiles : 0;
  r.tile = w - r.split * tiles;
  r.first = SPLIT ? (int)((long)r.split * blocks / t->splits) : 0;
  r.count = (SPLIT ? (int)((long)(r.split + 1) * blocks / t->splits) : blocks) - r.first;
  r.begin = r.first;
#endif
  const int band = r.tile / (GROUP_M * t->cols), top = band * GROUP_M, high = min(t->rows - top, GROUP_M);
  const int in_band = r.tile - band * GROUP_M * t->cols;
  r.bn = in_band / high;
  r.bm = top + in_band - r.bn * high;
  return r;
}
/* Returns the block after kb, which wraps around within the item's part. */
static inline int next_block(int kb, const Work *work) {
#if STREAM_K
  return kb + 1 == work->first + work->count ? work->first : kb + 1;
#else
  return kb + 1;
#endif
}
/* Returns whether a tile's sum is complete once the parts before this item's are added. */
static inline int is_whole(const Work *work, const Tiles *t) { return SPLIT != 1 || work->first + work->count == t->blocks; }
