/* Matrix product for NVIDIA sm_90 (instructions in sm90.cl and matmul_sm90.cl, the order of work in matmul_wgmma_sm90_work.cl, sizes and
 * the ends of a product in _ends.cl): C = epilogue(A B) on the tensor cores, sums in f32. f16 and bf16 as they are; f32 rounded to
 * tf32 by the copies, for A and B along k only, with SPLIT 2 or 3 and one split: `part` is then C, BIAS and alpha are the epilogue.
 *
 * One group a multiprocessor walks the tiles of C. Its first warpgroup only copies: one item asks for blocks of A and B, 64
 * steps of the sum at a time (32 of tf32), which arrive in a ring of STAGES local buffers by TMA, swizzled as wgmma reads them; rows
 * and columns outside the matrices arrive as zeros. The other two warpgroups multiply straight from there into registers.
 *   PP 1  ping-pong: each owns whole tiles of BM by BN in turn, so that one multiplies while the other stores.
 *   PP 0  both share a tile twice as high: fewer bytes a product, for large matrices.
 *
 * Where C has too few tiles to fill a device (gradients of weights), `splits` items of work share a tile, each with its part of
 * k. The order in which their sums are added is fixed, so the result has the same bits on every run.
 *   SPLIT 1  each adds to what the one before it left in `part`, and the last goes on to C. The items of a tile are handed out
 *            in that order, so each waits only for one that has begun. For tiles that few items share at one time. With STREAM_K the
 *            blocks of all tiles are one row, of which each group has an equal run: the fewest sums are handed on.
 *   SPLIT 2  each leaves its sums in `part`, and matmul_wgmma_sum adds them up: nobody waits, but all of it is read again.
 *   SPLIT 3  each adds its sums to `part`. With one split, so one item of work for each element, a gradient grows by what a
 *            chunk of rows adds to it; the order is that of the launches.
 *
 * Epilogues write C and aux straight from registers, for which four lanes exchange theirs first, and read aux or C so too. With
 * STAGED they go through local memory: a warp's part of a tile is cut into boxes of BOX_ROWS rows by 64 columns (128 bytes, swizzled
 * as copies do it), for STAGED of which each multiplying warp has room. One lane asks for a box by TMA before the tile's products
 * begin, waits for it by an mbarrier and sends it off by TMA, which keeps to C's edges. No warp waits for another.
 * Design: CUTLASS's persistent warp-specialised kernels for Hopper, ping-pong and cooperative; stream-K (Osama et al. 2023, arXiv:2301.03598).
 * Ceiling: 989 TFLOP/s dense bf16 by the data sheet, about 970 by wgmma without loads; held below by the power limit. Reached on an
 * H200: 590 to 714 sustained for products of 768 and more, 0.95 to 1.22 of cuBLAS in the same run (docs/log/products.md).
 *
 * maps      tensor maps of A and B at byte `at`: blocks of 64 by BM and 64 by BN where k is contiguous, of 64 rows or columns by
 *           64 steps where it is not. With STAGED, of C and then of aux, where it is used: blocks of 64 columns by BOX_ROWS.
 * bias      T (N), read with BIAS.
 * aux       T (M, N). RESIDUAL: added. GELU: C is GELU of the sum, and aux gets the sum itself. GELU_GRAD: C is the sum times
 *           the derivative of GELU at aux.
 * c         T (M, N), rows of N. With ADD_C it is added to.
 * part      float: SPLIT 1 (tiles, warpgroups that share one, BM * BN or half) in the order of the registers, SPLIT 2 and 3 (splits, M, N).
 * sums      float (splits, tile rows, N), with COLUMN_SUMS and B not along k: the sums of B's columns (the gradient of a bias beside
 *           that of its weight). Made by warps that had nothing to do. They are slower than the products, so each row of tiles,
 *           all of which read the same blocks, adds up its share of them; matmul_wgmma_columns adds those up, in a fixed order.
 * tickets     int, with SPLIT 1: one a tile and warpgroup that shares it, the blocks summed so far; 0 before and after.
 * m n k     sizes; rows of A and B start at multiples of 16 bytes. n is a multiple of 8 with SPLIT 2 and 3 and with STAGED.
 * Groups    as many as there are multiprocessors, or items of work if fewer, of 384 items. matmul_wgmma_sum: a work-item for four
 *           neighbours of C, groups of 256. matmul_wgmma_columns: 8 for a column, groups of 32 columns.
 *
 * Defines: DTYPE 0 to 2; A_ALONG_K, B_ALONG_K: the axis of stride 1 is k; BN 64, 128, 192 or 256; MT blocks of 64 rows a
 * warpgroup; PP, STAGES, GROUP_M tile rows in a band, SPLIT 0 to 3, STREAM_K (0 or 1, with SPLIT 1; `splits` are then the most that
 * share a tile); BIAS and COLUMN_SUMS (0 or 1), and one of ADD_C, RESIDUAL, GELU, GELU_GRAD (the last three not with SPLIT 2, none
 * with SPLIT 3); STAGED, with SPLIT 0 or 1: 0 or boxes a warp has room for, two at least; then BOX_ROWS 8 or 16. C_LANES 8, 2 or 1:
 * rows of C and aux begin at multiples of it.
 */
__attribute__((reqd_work_group_size(384, 1, 1)))
__kernel void matmul_wgmma(__global const uchar *maps, __global const T *bias, __global T *aux, __global T *c,
                           __global float *part, __global int *tickets, const ulong at, const int m, const int n, const int k,
                           const int splits, const float alpha
#if COLUMN_SUMS
                           , __global float *sums
#endif
) {
  __local uchar ring[STAGES * STAGE_BYTES + STAGING_BYTES + 1024] __attribute__((aligned(1024)));
  const uint base = (uint)(size_t)ring, full = base + STAGES * STAGE_BYTES + STAGING_BYTES, empty = full + STAGES * 8;
  const int item = get_local_id(0), group = get_group_id(0), groups = get_num_groups(0);
  const int rows = (m + BM - 1) / BM, cols = (n + BN - 1) / BN, blocks = (k + BK - 1) / BK;
  const int works = WORKS;
  if (item == 0) {
    for (int s = 0; s < STAGES; s++) mbar_init(full + s * 8, 1), mbar_init(empty + s * 8, (PP ? 1 : 2) + 3 * COLUMN_SUMS);
#if STAGED && READS
    for (int s = 0; s < 8 * STAGED; s++) mbar_init(empty + STAGES * 8 + s * 8, 1);
#endif
    barriers_ready();
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  uint stage = 0;
  if (item < 128) {
#if COLUMN_SUMS
    asm volatile("//@setmaxnreg.dec.sync.aligned.u32 40;");
#else
    asm volatile("//@setmaxnreg.dec.sync.aligned.u32 24;");
#endif
    if (item == 0) {
      const ulong map_a = use_map((ulong)(maps + at)), map_b = use_map(map_a + 128);
      uint phase = 1;
      for (int w = group; w < works; w += groups) {
        const Work work = work_of(w, rows, cols, blocks, splits);
        for (int i = 0, kb = work.begin; i < work.count; i++, kb = NEXT_BLOCK(kb, work)) {
          const uint a = base + stage * STAGE_BYTES, b = a + A_BYTES, bar = full + stage * 8;
          mbar_wait(empty + stage * 8, phase);
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
          if (++stage == STAGES) stage = 0, phase ^= 1;
        }
      }
    }
#if COLUMN_SUMS
    if (item >= 32) {
      /* Warp v of three has every third 64 columns of B, an item two of them: no two items of a row touch one bank. */
      const int lane = item & 31, v = (item >> 5) - 1;
      uint phase = 0;
      for (int w = group; w < works; w += groups) {
        const Work work = work_of(w, rows, cols, blocks, splits);
        float2 sum[COLUMN_BLOCKS];
        UNROLL for (int i = 0; i < COLUMN_BLOCKS; i++) sum[i] = (float2)(0.0f);
        for (int left = work.count, kb = work.begin; left > 0; left--, kb = NEXT_BLOCK(kb, work)) {
          mbar_wait(full + stage * 8, phase);
          if (kb % rows == work.bm) {
            UNROLL for (int i = 0; i < COLUMN_BLOCKS; i++) {
              if (v + 3 * i >= BN / 64) break;
              const uint block = base + stage * STAGE_BYTES + A_BYTES + (v + 3 * i) * (BK * 128) + (lane & 3) * 4;
              for (int r = 0; r < BK; r += 4)
                UNROLL for (int e = 0; e < 4; e++) sum[i] += unpack(local4(block + (r + e) * 128 + ((lane >> 2 ^ ((r & 4) + e)) << 4)));
            }
          }
          asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
          if (lane == 0) mbar_arrive(empty + stage * 8);
          if (++stage == STAGES) stage = 0, phase ^= 1;
        }
        UNROLL for (int i = 0; i < COLUMN_BLOCKS; i++) {
          const int block = v + 3 * i, col = work.bn * BN + block * 64 + lane * 2;
          for (int s = work.split; s < (STREAM_K && WHOLE(work) ? splits : work.split + 1); s++, sum[i] = (float2)(0.0f))
            if (block < BN / 64 && col < n) *(__global float2 *)(sums + ((size_t)s * rows + work.bm) * n + col) = sum[i];
        }
      }
    }
#endif
    return;
  }
#if COLUMN_SUMS
  asm volatile("//@setmaxnreg.inc.sync.aligned.u32 232;");
#else
  asm volatile("//@setmaxnreg.inc.sync.aligned.u32 240;");
#endif
  const int mine = item / 128 - 1; /* which of the two warpgroups */
  const int lane = item & 31, warp = item >> 5 & 3, quad = lane & 3;
  const int row_block = PP ? 0 : mine * MT;
#if STAGED
  const ulong map_c = (ulong)(maps + at) + 256;
  if (lane == 0) {
    use_map(map_c);
#if RESIDUAL || GELU || GELU_GRAD
    use_map(map_c + 128);
#endif
  }
  warp_meet();
#if READS
  uint tiles = 0;
#endif
#endif
  uint phase = 0;
  int w = group;
#if PP
  /* The second warpgroup starts behind the first one's blocks. */
  if (mine) {
    const int skipped = work_of(group, rows, cols, blocks, splits).count;
    stage = skipped % STAGES, phase = skipped / STAGES & 1;
    w += groups;
    bar_arrive(2, 256);
  }
#endif
  for (; w < works; w += PP ? 2 * groups : groups) {
    const Work work = work_of(w, rows, cols, blocks, splits);
    float acc[MT][BN / 2];
    uint last = 0;
#if STAGED && READS
    /* What the epilogue reads first comes while the products are made. */
    if (lane == 0 && WHOLE(work)) {
      const uint id = local_id(), boxes = BOXES_OF(id), loaded = LOADED_OF(id);
      BOXES_LEFT(0);
      UNROLL for (int b = 0; b < STAGED && b < BOXES; b++) ASK(b);
    }
    warp_meet();
#endif
#if PP
    bar_sync(2 + mine, 256);
#endif
    for (int kb = 0; kb < work.count; kb++) {
      mbar_wait(full + stage * 8, phase);
      const uint a0 = (base + stage * STAGE_BYTES) >> 4, b0 = a0 + (A_BYTES >> 4);
      asm volatile("//@wgmma.fence.sync.aligned;" ::: "memory");
      UNROLL for (int step = 0; step < 4; step++) {
        const ulong b = B_ALONG_K ? ALONG_K_BITS | (ulong)(b0 + step * 2) : ACROSS_K_BITS | (ulong)(b0 + step * 128);
        UNROLL for (int i = 0; i < MT; i++) {
          const ulong a = A_ALONG_K ? ALONG_K_BITS | (ulong)(a0 + (row_block + i) * 512 + step * 2)
                                    : ACROSS_K_BITS | (ulong)(a0 + (row_block + i) * (BK * 8) + step * 128);
          WGMMA(acc[i], a, b, step > 0 || kb > 0);
        }
      }
      asm volatile("//@wgmma.commit_group.sync.aligned;" ::: "memory");
      /* The block before this one has been read once at most this one's products are under way. */
      if (kb > 0) {
        asm volatile("//@wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if ((item & 127) == 0) mbar_arrive(last);
      }
      last = empty + stage * 8;
      if (++stage == STAGES) stage = 0, phase ^= 1;
    }
#if PP
    bar_arrive(3 - mine, 256);
#endif
    asm volatile("//@wgmma.wait_group.sync.aligned 0;" ::: "memory");
    if ((item & 127) == 0) mbar_arrive(last);
#if PP
    /* The next tile is the other warpgroup's. */
    const uint next = stage + work_of(min(w + groups, works - 1), rows, cols, blocks, splits).count;
    phase ^= next / STAGES & 1, stage = next % STAGES;
#endif
#if SPLIT == 1
    {
      const int slot = PP ? work.tile : work.tile * 2 + mine; /* whose sums: of one warpgroup */
      __global float *sums = part + (size_t)slot * (MT * BN * 64) + (item & 127) * 4;
      if (work.first > 0) {
        while ((item & 127) == 0 && turn_of(tickets + slot) != work.first) {}
        bar_sync(4 + mine, 128);
        UNROLL for (int i = 0; i < MT; i++)
          UNROLL for (int j = 0; j < BN / 8; j++) {
            const float4 before = part_load(sums + (i * (BN / 8) + j) * 512);
            acc[i][j * 4] += before.x, acc[i][j * 4 + 1] += before.y;
            acc[i][j * 4 + 2] += before.z, acc[i][j * 4 + 3] += before.w;
          }
      }
      if (!WHOLE(work)) {
        UNROLL for (int i = 0; i < MT; i++)
          UNROLL for (int j = 0; j < BN / 8; j++)
            part_store(sums + (i * (BN / 8) + j) * 512, acc[i][j * 4], acc[i][j * 4 + 1], acc[i][j * 4 + 2], acc[i][j * 4 + 3]);
        bar_sync(4 + mine, 128);
        if ((item & 127) == 0) {
          asm volatile("fence.acq_rel.gpu;" ::: "memory");
          turn_set(tickets + slot, work.first + work.count);
        }
        continue;
      }
      bar_sync(4 + mine, 128);
      if ((item & 127) == 0) turn_set(tickets + slot, 0);
    }
#endif
#if SPLIT >= 2
    UNROLL for (int i = 0; i < MT; i++)
      UNROLL for (int j = 0; j < BN / 8; j++) {
        const int row = work.bm * BM + (row_block + i) * 64 + warp * 16 + (lane >> 2), col = work.bn * BN + j * 8 + quad * 2;
        __global float *to = part + ((size_t)work.split * m + row) * n + col;
#if DTYPE == 0
        UNROLL for (int e = 0; e < 4; e++) {
          acc[i][j * 4 + e] *= alpha;
#if BIAS
          acc[i][j * 4 + e] += as_float(load_word(bias + col + (e & 1), col < n));
#endif
        }
#endif
        SUM8(to, row < m && col < n, acc[i][j * 4], acc[i][j * 4 + 1]);
        SUM8(to + (size_t)8 * n, row + 8 < m && col < n, acc[i][j * 4 + 2], acc[i][j * 4 + 3]);
      }
    continue;
#elif STAGED
#if !READS
    if (lane == 0) BOXES_LEFT(0);
    warp_meet();
#endif
    const uint id = local_id(), boxes = BOXES_OF(id), r = id & 7, matrix = id >> 3 & 3;
    /* Where this lane's row of four matrices starts within a box. */
    const uint place = r * 128 + (HALVES == 1 ? (matrix & 1) * 1024 + ((matrix >> 1 ^ r) << 4) : (matrix ^ r) << 4);
#if READS
    const uint loaded = LOADED_OF(id);
#endif
#if BIAS
    uint beside[8];
#endif
    UNROLL for (int b = 0; b < BOXES; b++) {
      const int i = b / HALVES % MT, j0 = b / COLUMN * 8;
#if BIAS
      if (b % COLUMN == 0) {
        UNROLL for (int j = 0; j < 8; j++) beside[j] = load_word(bias + BOX_X(b) + j * 8 + quad * 2, BOX_X(b) + j * 8 < n);
      }
#endif
#if GELU
      uint x[4];
#endif
#if READS
      uint x[8];
      mbar_wait(loaded + b % STAGED * 8, FILL(b) & 1);
      warp_meet();
      matrices_load(x, BOX(b, 0) + place);
#else
      if ((b + 1) * SENT > STAGED) {
        if (lane == 0) BOXES_LEFT(STAGED - SENT);
        warp_meet();
      }
#endif
      UNROLL for (int t = 0; t < MATRICES; t++) {
        uint v[4];
#if READS
        if (t + 1 < MATRICES) matrices_load(x + (t + 1) % 2 * 4, (BOX(b, 0) + place) ^ STEP(t + 1));
#endif
        UNROLL for (int e = 0; e < 4; e++) {
          const int j = HALVES == 1 ? t * 2 + e / 2 : t * 4 + e, at_sum = (j0 + j) * 4 + (HALVES == 1 ? e % 2 : b % 2) * 2;
          float2 y = (float2)(acc[i][at_sum], acc[i][at_sum + 1]) * alpha;
#if BIAS
          y += unpack(beside[j]);
#endif
          FINISH(y, x[GELU ? e : t % 2 * 4 + e]);
          v[e] = pack(y.x, y.y);
        }
        matrices_store((BOX(b, 0) + place) ^ STEP(t), v);
#if GELU
        matrices_store((BOX(b, 1) + place) ^ STEP(t), x);
#endif
      }
      box_written();
      warp_meet();
      if (lane == 0) {
        send(map_c, BOX_X(b), BOX_Y(b), BOX(b, 0));
#if GELU
        send(map_c + 128, BOX_X(b), BOX_Y(b), BOX(b, 1));
#endif
#if READS
        /* The box before this one has had the time of this one to leave. */
        if (b > 0 && b - 1 + STAGED < BOXES) {
          BOXES_LEFT(1);
          ASK(b - 1 + STAGED);
        }
#endif
      }
    }
#if READS
    tiles++;
#endif
#else
    /* acc[i][4j + {0,1}] lies in row `lane / 4`, columns 8j + 2 quad + {0,1}; {2,3} eight rows below. Four lanes exchange
     * theirs, so that each stores eight neighbours; where rows of C begin anywhere, each stores its own. */
#if C_LANES < 8
    UNROLL for (int i = 0; i < MT; i++)
      UNROLL for (int s = 0; s < BN / 4; s++) {
        const int low = s / (BN / 8), j = s % (BN / 8);
        const int row = work.bm * BM + (row_block + i) * 64 + warp * 16 + (lane >> 2) + low * 8;
        const int col = work.bn * BN + j * 8 + quad * 2, left = row < m ? n - col : 0;
        const size_t to = (size_t)row * n + col;
        float2 y = (float2)(acc[i][j * 4 + low * 2], acc[i][j * 4 + low * 2 + 1]) * alpha;
#if READS
        uint x = load_pair(READ_FROM + to, left);
#elif GELU
        uint x;
#endif
#if BIAS
        y += unpack(load_pair(bias + col, n - col));
#endif
        FINISH(y, x);
        store_pair(c + to, left, pack(y.x, y.y));
#if GELU
        store_pair(aux + to, left, x);
#endif
      }
#else
    UNROLL for (int i = 0; i < MT; i++) {
      const int row0 = work.bm * BM + (row_block + i) * 64 + warp * 16 + (lane >> 2);
      const int col0 = work.bn * BN + quad * 8;
      const size_t above = (size_t)row0 * n + col0, below = above + (size_t)8 * n;
      __global const T *bias_at = bias + work.bn * BN + quad * 2;
#if READS
      /* What is read waits a microsecond for memory: EARLY of it is on its way at any time. */
      uint4 read[EARLY];
      UNROLL for (int s = 0; s < EARLY; s++) read[s] = READ(s);
#endif
      UNROLL for (int s = 0; s < STEPS; s++) {
        const int j = s / 2 * 4;
        uint v[4];
#if READS
        uint x[4] = {read[s % EARLY].x, read[s % EARLY].y, read[s % EARLY].z, read[s % EARLY].w};
        if (s + EARLY < STEPS) read[s % EARLY] = READ(s + EARLY);
        exchange(x, quad);
#elif GELU
        uint x[4];
#endif
        UNROLL for (int e = 0; e < 4; e++) {
          float2 y = (float2)(acc[i][(j + e) * 4 + s % 2 * 2], acc[i][(j + e) * 4 + s % 2 * 2 + 1]) * alpha;
#if BIAS
          y += unpack(load_word(bias_at + (j + e) * 8, work.bn * BN + (j + e) * 8 < n));
#endif
          FINISH(y, x[e]);
          v[e] = pack(y.x, y.y);
        }
        exchange(v, quad);
        store16(c + (s % 2 ? below : above) + AT(s), INSIDE(s), v);
#if GELU
        exchange(x, quad);
        store16(aux + (s % 2 ? below : above) + AT(s), INSIDE(s), x);
#endif
      }
    }
#endif
#endif
  }
#if STAGED
  /* Local memory must last until all of it has been read. */
  if (lane == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}
