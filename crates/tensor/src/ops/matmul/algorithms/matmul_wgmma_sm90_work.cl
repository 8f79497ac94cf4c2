/* Which group of matmul_wgmma_sm90.cl does what, and in which order; SPLIT, STREAM_K and GROUP_M are its defines. `rows` and `cols` count
 * tiles of C, `blocks` those of the sum; without STREAM_K there are at most as many `splits`, for a part without blocks would take another's turn.
 *
 * Item of work w: its tile's row and column, its part of k in blocks, which it walks in a circle from `begin` on. Bands of GROUP_M tile
 * rows keep what runs at one time close together in A and B.
 */
typedef struct {
  int bm, bn, tile, split, first, count, begin;
} Work;
#if STREAM_K
/* A group's run of blocks among all tiles' begins here. */
#define RUN(group) ((int)((long)(group) * rows * cols * blocks / (int)get_num_groups(0)))
/* Items of work, as the loops count them: one for each tile that the run touches. */
#define WORKS (group + groups * ((RUN(group + 1) - 1) / blocks - RUN(group) / blocks + 1))
#else
#define WORKS (rows * cols * (SPLIT ? splits : 1))
#endif
static inline Work work_of(int w, int rows, int cols, int blocks, int splits) {
  Work r;
  const int tiles = rows * cols;
#if STREAM_K
  /* The last tile first: what the next group waits for is done when this one's wait begins. */
  const int group = get_group_id(0), begin = RUN(group), end = RUN(group + 1);
  r.tile = (end - 1) / blocks - w / (int)get_num_groups(0);
  r.split = group - (int)((((long)r.tile * blocks + 1) * (int)get_num_groups(0) - 1) / (tiles * blocks));
  r.first = max(begin - r.tile * blocks, 0);
  r.count = min(end - r.tile * blocks, blocks) - r.first;
  /* Groups that read the same rows of A or columns of B should want the same blocks at one time, so that memory is read once: at
   * any time all are at the same block, counted round after round of a run's length. */
  const int run = max(end - begin, 1), done = max(end - (r.tile + 1) * blocks, 0), ahead = (done % run - r.first % run + run) % run;
  r.begin = r.first + (ahead < r.count ? ahead : 0);
#else
  r.split = SPLIT ? w / tiles : 0;
  r.tile = w - r.split * tiles;
  r.first = SPLIT ? (int)((long)r.split * blocks / splits) : 0;
  r.count = (SPLIT ? (int)((long)(r.split + 1) * blocks / splits) : blocks) - r.first;
  r.begin = r.first;
#endif
  const int band = r.tile / (GROUP_M * cols), top = band * GROUP_M, high = min(rows - top, GROUP_M);
  const int in_band = r.tile - band * GROUP_M * cols;
  r.bn = in_band / high;
  r.bm = top + in_band - r.bn * high;
  return r;
}
#if STREAM_K
#define NEXT_BLOCK(kb, work) ((kb) + 1 == (work).first + (work).count ? (work).first : (kb) + 1)
#else
#define NEXT_BLOCK(kb, work) ((kb) + 1)
#endif
/* Whether an item's sums are a whole tile's once those before it are added. */
#define WHOLE(work) (SPLIT != 1 || work.first + work.count == blocks)
