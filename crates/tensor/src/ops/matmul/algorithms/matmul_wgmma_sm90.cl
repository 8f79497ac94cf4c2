/* Matrix product for NVIDIA's sm_90: C = epilogue(A B) on tensor cores, sums in f32. f16 and bf16 are used unchanged. The copies round f32 to
 * tf32, for A and B along k only, with SPLIT 2 or 3 and one split: `part` is then C, and the epilogue is BIAS and alpha.
 *
 *   include/sm90.cl, matmul_sm90.cl       barriers, rings; instructions as functions
 *   matmul_wgmma_sm90_schedule.cl         the order of work: which group computes what, and when
 *   matmul_wgmma_sm90_tiles.cl            sizes of blocks, layout of local memory, the products of a block
 *   matmul_wgmma_sm90_reduction.cl        split-K, column sums
 *   matmul_wgmma_sm90_epilogue.cl         from the sums to C and aux
 *   conv_wgmma_sm90.cl                    with CONV: the copies and rows of a convolution instead of a product's
 *   this file                             producer, consumers' main loop, the kernel
 *
 * One group per multiprocessor processes the tiles of C. Its first warpgroup only copies: one item, the producer, requests blocks of A and B, 64
 * steps of the sum at a time (32 of tf32). TMA copies them into a ring of STAGES local buffers, swizzled as wgmma reads them; rows and columns
 * outside the matrices become zeros. The other two warpgroups, the consumers, multiply directly from there into registers.
 *   PP 1  ping-pong: each owns whole tiles of BM by BN in turn, so that one multiplies while the other stores.
 *   PP 0  cooperative: both share a tile of twice the height: fewer bytes per product, for large matrices.
 *
 *   local memory      (A | B) 0 | (A | B) 1 | ... STAGES | boxes of STAGED, 8 warps | barriers
 *   producer          blocks of tile 0 -> blocks of tile 1 -> blocks of tile 2 -> ...
 *   PP 1  consumer 0  products of 0   | epilogue of 0   | products of 2   | epilogue of 2 ...
 *         consumer 1                  | products of 1   | epilogue of 1   | products of 3 ...
 *   PP 0  both        products of 0   | epilogue of 0   | products of 1   | epilogue of 1 ... (the producer fills the ring meanwhile)
 *
 *   barrier            id      items   arrives                                         waits
 *   full               -       bytes   the producer's copies                           consumers, and warps that sum columns
 *   free               -       1 or 2  consumers, once products have read the stage;   the producer, before the next copies
 *                              (+ 3)   warps that sum columns
 *   loaded             -       bytes   a warp's copy of a box (STAGED and READS)       the warp
 *   TURN + c           2, 3    256     consumer 1 - c, its products issued (PP)        consumer c, before its products
 *   TURN_TAKEN + c     4, 5    128     the items of consumer c (SPLIT 1), around its reads and writes of `part`
 *
 * Fragments of 64 rows by BN columns: acc[i] of lane l of warp w in a consumer, for block i of 64 rows, j from 0 to BN / 8 - 1:
 *
 *   acc[i][4j], [4j + 1]       row 16 w + l / 4        columns 8 j + 2 (l % 4) and the next
 *   acc[i][4j + 2], [4j + 3]   row 16 w + l / 4 + 8    the same
 *
 * If C has too few tiles to fill a device (gradients of weights), `splits` items of work share a tile, each with its part of k. Their sums are
 * added in a fixed order, so the result has the same bits on every run.
 *   SPLIT 1  each item adds its sums to those that the item before it left in `part`, and the last one computes C. The items of a tile start in
 *            that order, so each waits only for an item that has started. For tiles that few items share at a time. With STREAM_K the
 *            blocks of all tiles form one sequence, and each group has an equal run of it: the fewest sums are handed over.
 *   SPLIT 2  each item leaves its sums in `part`, and matmul_wgmma_sum adds them: nobody waits, but all sums are read again.
 *   SPLIT 3  each item adds its sums to `part`. With one split, each element has one item of work, and a chunk of rows adds to a
 *            gradient; the order is that of the launches.
 *
 * Epilogues write C and aux directly from registers, after an exchange between four lanes, and read aux or C in the same way. With STAGED they
 * go through local memory: a warp's part of a tile is divided into boxes of BOX_ROWS rows by 64 columns (128 bytes, swizzled like copies). Each
 * multiplying warp has room for STAGED boxes. One lane requests a box by TMA before the tile's products begin, waits for it at an mbarrier and
 * sends it by TMA, which respects C's edges. No warp waits for another.
 * Design: CUTLASS's persistent warp-specialized kernels for Hopper, ping-pong and cooperative; stream-K (Osama et al. 2023, arXiv:2301.03598).
 * Ceiling: 989 TFLOP/s dense bf16 by the data sheet, about 970 by wgmma without loads; the power limit lowers it. Reached on an H200: 590 to 714
 * sustained for products of 768 and more, 0.95 to 1.22 of cuBLAS in the same run (docs/log/products.md).
 *
 * maps      tensor maps of A and B at byte maps_at: blocks of 64 by BM and 64 by BN if k is contiguous, otherwise of 64 rows or columns by
 *           64 steps. With STAGED, of C and then of aux, if it is used: blocks of 64 columns by BOX_ROWS.
 * bias      T (N), read with BIAS.
 * aux       T (M, N). RESIDUAL: is added. GELU: C is GELU of the sum, and aux gets the sum itself. GELU_GRAD: C is the sum times
 *           the derivative of GELU at aux.
 * c         T (M, N), rows of N. With ADD_C, the product is added to it.
 * part      float: SPLIT 1 (tiles, warpgroups that share one, BM * BN or half) in the order of the registers, SPLIT 2 and 3 (splits, M, N).
 * sums      float (splits, tile rows, N), with COLUMN_SUMS and B not along k: the sums of B's columns (the gradient of a bias together with
 *           that of its weight). Otherwise idle warps compute them. They are slower than the products, so each row of tiles,
 *           all of which read the same blocks, adds its share of them; matmul_wgmma_columns adds the shares in a fixed order.
 * tickets   int, with SPLIT 1: one per tile and warpgroup that shares it, the blocks summed so far; 0 before and after.
 * m n k     sizes; rows of A and B start at multiples of 16 bytes. n is a multiple of 8 with SPLIT 2 and 3 and with STAGED.
 * Groups    the number of multiprocessors, or of items of work if that is smaller; 384 items each. matmul_wgmma_sum: a work-item per four
 *           adjacent elements of C, groups of 256. matmul_wgmma_columns: 8 items per column, groups of 32 columns.
 *
 * Defines: DTYPE 0 to 2; A_ALONG_K, B_ALONG_K: the axis of stride 1 is k; BN 64, 128, 192 or 256; MT blocks of 64 rows per warpgroup; PP,
 * STAGES, GROUP_M tile rows in a band, SPLIT 0 to 3, STREAM_K (0 or 1, with SPLIT 1; `splits` is then the maximum number of groups per tile);
 * BIAS and COLUMN_SUMS (0 or 1), and one of ADD_C, RESIDUAL, GELU, GELU_GRAD (the last three not with SPLIT 2, none with SPLIT 3); STAGED, with
 * SPLIT 0 or 1: 0, or the boxes that a warp has room for, at least two; then BOX_ROWS 8 or 16. C_LANES 8, 2 or 1: rows of C and aux start at
 * multiples of it. TREE, a generated expression of C's elements, with C_LANES 8, SPLIT 0 or 1 and STAGED 0; VW is 4 then.
 */
#if COLUMN_SUMS
#define COPY_REGISTERS 40
#define MATH_REGISTERS 232
#else
#define COPY_REGISTERS 24
#define MATH_REGISTERS 240
#endif

/* The producer: copies the blocks of every item of work into the ring. */
INLINE void produce(const Place *at, const Product *p, const Tiles *t) {
#if CONV
  for (int i = 0; i <= p->pixels.taps; i++) use_map(p->maps + i * 128);
#else
  const ulong map_a = use_map(p->maps), map_b = use_map(map_a + 128);
#endif
  const int groups = get_num_groups(0);
  uint stage = 0, phase = 1;
  for (int w = get_group_id(0); w < t->works; w += groups) {
    const Work work = work_of(w, t);
    for (int i = 0, kb = work.begin; i < work.count; i++, kb = next_block(kb, &work)) {
      const uint a = at->ring + stage * STAGE_BYTES, b = a + A_BYTES, bar = at->full + stage * 8;
      mbar_wait(at->free + stage * 8, phase);
#if CONV
      fetch_block(a, b, p, &work, kb, bar);
#else
      mbar_expect(bar, STAGE_BYTES);
#if A_ALONG_K
      fetch(a, map_a, kb * BK, work.bm * BM, bar);
#else
      UNROLL for (int i = 0; i < BM / 64; i++) fetch(a + i * BK * 128, map_a, work.bm * BM + i * 64, kb * BK, bar);
#endif
#if B_ALONG_K
      fetch(b, map_b, kb * BK, work.bn * BN, bar);
#else
      UNROLL for (int i = 0; i < BN / 64; i++) fetch(b + i * BK * 128, map_b, work.bn * BN + i * 64, kb * BK, bar);
#endif
#endif
      NEXT_STAGE(stage, phase, STAGES)
    }
  }
}

/* Processes the items of work of consumer `mine` (warpgroup 1 or 2): main loop, reduction, epilogue. (If `mine` itself were the argument, ptxas
 * 12.9 would assume that descriptors differ between items and move each to a uniform register: 18 more instructions per block.) */
INLINE void consume(const Place *at, const Product *p, const Tiles *t, int warpgroup TREE_PARAMETERS) {
  const int item = get_local_id(0), groups = get_num_groups(0), mine = warpgroup - 1, row_block = PP ? 0 : mine * MT;
  uint stage = 0, phase = 0, tiles = 0;
  int w = get_group_id(0);
#if STAGED
  if ((item & 31) == 0) {
    use_map(map_of_c(p));
#if RESIDUAL || GELU || GELU_GRAD
    use_map(map_of_c(p) + 128);
#endif
  }
  warp_sync();
#endif
#if PP
  /* The second warpgroup starts after the first one's blocks. */
  if (mine) {
    const int skipped = work_of(w, t).count;
    stage = skipped % STAGES, phase = skipped / STAGES & 1;
    w += groups;
    bar_arrive(TURN, 256);
  }
#endif
  for (; w < t->works; w += PP ? 2 * groups : groups) {
    const Work work = work_of(w, t);
    float acc[MT][BN / 2];
    uint last = 0;
#if STAGED && READS
    load_first_boxes(at, p, t, &work, row_block);
#endif
#if PP
    bar_sync(TURN + mine, 256);
#endif
    for (int kb = 0; kb < work.count; kb++) {
      mbar_wait(at->full + stage * 8, phase);
      multiply(acc, (at->ring + stage * STAGE_BYTES) >> 4, row_block, kb > 0);
      /* With at most this block's products in flight, the block before it has been read. */
      if (kb > 0) {
        WAIT_PRODUCTS(1);
        if ((item & 127) == 0) mbar_arrive(last);
      }
      last = at->free + stage * 8;
      NEXT_STAGE(stage, phase, STAGES)
    }
#if PP
    bar_arrive(TURN + 1 - mine, 256);
#endif
    WAIT_PRODUCTS(0);
    if ((item & 127) == 0) mbar_arrive(last);
#if PP
    /* The next tile belongs to the other warpgroup. */
    const uint next = stage + work_of(min(w + groups, t->works - 1), t).count;
    phase ^= next / STAGES & 1, stage = next % STAGES;
#endif
#if SPLIT == 1
    if (!add_in_turn(acc, p, t, &work, mine)) continue;
#endif
#if SPLIT >= 2
    store_sums(acc, p, &work, row_block);
#elif STAGED
    store_boxes(acc, at, p, &work, row_block, tiles);
    tiles++;
#elif C_LANES < 8
    store_pairs(acc, p, &work, row_block);
#else
    store_eights(acc, p, &work, row_block TREE_ARGUMENTS);
#endif
  }
#if STAGED
  /* Local memory must stay allocated until all of it has been read. */
  if ((item & 31) == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

__attribute__((reqd_work_group_size(384, 1, 1)))
__kernel void matmul_wgmma(__global const uchar *maps, __global const T *bias, __global T *aux, __global T *c,
                           __global float *part, __global int *tickets, const ulong maps_at, const int m, const int n, const int k,
                           const int splits, const float alpha
#if COLUMN_SUMS
                           , __global float *sums
#endif
#if CONV
                           , const int boxes_x, const int boxes_y, const int box_w, const int box_h, const int box_n, const int out_w, const int out_h,
                           const int out_n, const int taps, const int taps_w, const int c_channels, const int c_blocks, const int step_x, const int step_y,
                           const int dilation_x, const int dilation_y, const int origin_x, const int origin_y, const long y_off, const long y_n,
                           const long y_h, const long y_w
#endif
                           TREE_PARAMETERS) {
  __local uchar local_[LOCAL_BYTES] __attribute__((aligned(1024)));
  const Place at = place(local_);
  const Tiles t = tiles_of((m + BM - 1) / BM, (n + BN - 1) / BN, (k + BK - 1) / BK, splits);
  const int item = get_local_id(0);
  Product p;
#if CONV
  const Pixels pixels = {boxes_x, boxes_y, box_w, box_h, box_n, out_w, out_h, out_n, taps, taps_w, c_channels, c_blocks,
                         step_x, step_y, dilation_x, dilation_y, origin_x, origin_y, y_off, y_n, y_h, y_w};
  p.pixels = pixels;
#endif
  p.maps = (ulong)(maps + maps_at), p.bias = bias, p.aux = aux, p.c = c, p.part = part, p.tickets = tickets;
  p.m = m, p.n = n, p.alpha = alpha;
#if COLUMN_SUMS
  p.sums = sums;
#endif
  if (item == 0) rings(&at);
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item < 128) {
    GIVE_REGISTERS(COPY_REGISTERS);
    if (item == 0) produce(&at, &p, &t);
#if COLUMN_SUMS
    if (item >= 32) sum_columns(&at, &p, &t);
#endif
    return;
  }
  TAKE_REGISTERS(MATH_REGISTERS);
  consume(&at, &p, &t, item / 128 TREE_ARGUMENTS);
}
