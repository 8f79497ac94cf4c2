/* Tiles of matmul_wgmma_sm90.cl: sizes of blocks, layout of local memory, the wgmma instruction and its descriptors. That file has the arguments,
 * the launch and the defines. All other parts use the types of this one: Product (arguments), Place (addresses in local memory) and, with CONV,
 * Pixels.
 */
#define UNROLL _Pragma("unroll")
#if PP
#define BM (64 * MT)
#else
#define BM (128 * MT)
#endif
#define BK (DTYPE == 0 ? 32 : 64) /* 128 bytes */
#define A_BYTES (BM * 128)
#define B_BYTES (BN * 128)
#define STAGE_BYTES (A_BYTES + B_BYTES)
/* The epilogue reads a matrix: C if it is added to, otherwise aux. */
#define READS (ADD_C || RESIDUAL || GELU_GRAD)

#if STAGED
#if STAGED == 1
#error "a box is asked for while the one before it is on its way out: two at least"
#endif
#define BOX_BYTES (BOX_ROWS * 128)
#define STAGING_BYTES (8 * STAGED * BOX_BYTES)
#else
#define STAGING_BYTES 0
#endif

/* Named barriers: the turn of a warpgroup on the tensor cores (PP), and of a warpgroup in serial split-K. */
#define TURN 2
#define TURN_TAKEN 4

#if CONV
/* Pixels as rows or steps of a product, see conv_wgmma_sm90.cl. The fields are boxes along each axis and their sides, the result's sides and
 * strides, taps, channels of x and blocks of 64 of them, and the mapping between pixels and taps. */
typedef struct {
  int boxes_x, boxes_y, box_w, box_h, box_n, out_w, out_h, out_n, taps, taps_w, c, c_blocks, step_x, step_y, dilation_x, dilation_y, origin_x, origin_y;
  long y_off, y_n, y_h, y_w;
} Pixels;
#endif
/* Arguments of a product, see matmul_wgmma_sm90.cl. */
typedef struct {
#if CONV
  Pixels pixels;
#endif
  ulong maps; /* those of A and B, then of C and aux */
  __global const T *bias;
  __global T *aux, *c;
  __global float *part, *sums;
  __global int *tickets;
  int m, n;
  float alpha;
} Product;

/* First bytes in local memory of the ring, the boxes of STAGED, the ring's barriers, and the barriers of arriving boxes. */
typedef struct {
  uint ring, boxes, full, free, loaded;
} Place;
#define LOCAL_BYTES (STAGES * STAGE_BYTES + STAGING_BYTES + 1024)
INLINE Place place(__local uchar *local_) {
  Place at;
  at.ring = (uint)(size_t)local_;
  at.boxes = at.ring + STAGES * STAGE_BYTES;
  at.full = at.boxes + STAGING_BYTES;
  at.free = at.full + STAGES * 8;
  at.loaded = at.free + STAGES * 8;
  return at;
}
/* Initializes the rings. One item calls it, before the group's barrier. A stage is free after one arrival of each warpgroup that reads it, and
 * of each warp that sums columns. */
INLINE void rings(const Place *at) {
  for (int s = 0; s < STAGES; s++) mbar_init(at->full + s * 8, 1), mbar_init(at->free + s * 8, (PP ? 1 : 2) + 3 * COLUMN_SUMS);
#if STAGED && READS
  for (int s = 0; s < 8 * STAGED; s++) mbar_init(at->loaded + s * 8, 1);
#endif
  barriers_ready();
}

#if DTYPE == 0
#define WGMMA_DEPTH "8"
#define WGMMA_TAIL ""
#elif A_ALONG_K && B_ALONG_K
#define WGMMA_DEPTH "16"
#define WGMMA_TAIL ", 0, 0"
#elif A_ALONG_K
#define WGMMA_DEPTH "16"
#define WGMMA_TAIL ", 0, 1"
#elif B_ALONG_K
#define WGMMA_DEPTH "16"
#define WGMMA_TAIL ", 1, 0"
#else
#define WGMMA_DEPTH "16"
#define WGMMA_TAIL ", 1, 1"
#endif
#define WGMMA CAT(WGMMA_N, BN)
/* Descriptors of blocks in local memory: swizzle of 128 bytes, eight rows 1024 bytes apart. Blocks of 64 rows of m or n are consecutive if k is
 * not contiguous. */
#define ALONG_K_BITS ((ulong)1 << 62 | (ulong)(1024 >> 4) << 32 | (ulong)1 << 16)
#define ACROSS_K_BITS ((ulong)1 << 62 | (ulong)(1024 >> 4) << 32 | (ulong)(BK * 128 >> 4) << 16)

/* Issues acc (+)= A B of the stage at a0, in units of 16 bytes: MT blocks of 64 rows from number `row_block` on. Commits without waiting. */
INLINE void multiply(float (*acc)[BN / 2], uint a0, int row_block, int keep) {
  const uint b0 = a0 + (A_BYTES >> 4);
  asm volatile("//@wgmma.fence.sync.aligned;" ::: "memory");
  UNROLL for (int step = 0; step < 4; step++) {
    const ulong b = B_ALONG_K ? ALONG_K_BITS | (ulong)(b0 + step * 2) : ACROSS_K_BITS | (ulong)(b0 + step * 128);
    UNROLL for (int i = 0; i < MT; i++) {
      const ulong a = A_ALONG_K ? ALONG_K_BITS | (ulong)(a0 + (row_block + i) * 512 + step * 2)
                                : ACROSS_K_BITS | (ulong)(a0 + (row_block + i) * (BK * 8) + step * 128);
      WGMMA(acc[i], a, b, step > 0 || keep);
    }
  }
  asm volatile("//@wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Position of an item's part of a tile: rows of block i and columns in wgmma's layout (matmul_wgmma_sm90.cl has the table). */
INLINE int row_of(const Work *work, int row_block, int i) {
  const int item = get_local_id(0);
  return work->bm * BM + (row_block + i) * 64 + (item >> 5 & 3) * 16 + ((item & 31) >> 2);
}
