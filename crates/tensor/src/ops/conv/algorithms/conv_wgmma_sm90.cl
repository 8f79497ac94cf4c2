/* Convolutions on NVIDIA's sm_90 tensor cores: the product of matmul_wgmma_sm90.cl with the copies and row positions of a convolution. The
 * matrix of patches is never stored. For each tap, TMA copies the pixels of a box from the image, and zeros for pixels outside of it.
 *
 * Images are stored as (N, H, W, C). A box is box_w by box_h by box_n adjacent pixels of the result, rows of the product in that order.
 *
 * CONV 1, the convolution: C is (pixels, O), k = (tap, c) in blocks of 64 channels. Each 64 rows of a tile are one box of at most 64 pixels;
 *     the remaining rows hold undefined data from local memory, and are not stored. B is the weights as (O, taps, C), along k.
 * CONV 2, the gradient of weights: C is (taps * c_blocks * 64, O) of f32, k = pixels in boxes of 64. Rows are channels of a tap, 64 at a time;
 *     A is x at that tap, B is dy (pixels, O), both across k. With SPLIT 2 each part of k has a plane (taps * C, O) of `part`.
 *
 * Map 0 describes B: (C, O, taps) or (O, W', H', N). Map 1 + tap describes x for that tap, (C, W, H, N): every step_w-th pixel of every
 * step_h-th line, from the first one that the tap uses. It ends at the edges of the image, or at the pixel for the result's last pixel if that
 * comes first: pixels of a box beyond the result then read zeros from x, as they do from dy.
 *
 * Defines: those of matmul_wgmma_sm90.cl and CONV; A_ALONG_K and B_ALONG_K 1 with CONV 1, 0 with CONV 2; SPLIT 0 or 2.
 *
 * Design: implicit GEMM (Chetlur et al. 2014, arXiv:1410.0759); copies like CUTLASS's convolutions for Hopper, but with a map per tap instead of
 * im2col maps, whose encoding is not documented.
 */
#if CONV
/* Copies the block at channel c, pixel (x, y) of image n. */
INLINE void fetch_box(uint to, ulong map, int c, int x, int y, int n, uint bar) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];"
               ::"r"(to), "l"(map), "r"(c), "r"(x), "r"(y), "r"(n), "r"(bar) : "memory");
}
/* Returns a / b, rounded down. */
INLINE int floor_div(int a, int b) { return a / b - (a % b < 0); }

/* Returns the first pixel of box i: x, y, image. */
INLINE int4 box_at_number(const Pixels *q, int i) {
  const int line = i / q->boxes_x, image = line / q->boxes_y;
  return (int4)((i - line * q->boxes_x) * q->box_w, (line - image * q->boxes_y) * q->box_h, image * q->box_n, 0);
}
/* Returns the same position in the map of a tap. */
INLINE int4 seen_by(const Pixels *q, int4 at, int tap) {
  const int i = tap / q->taps_w, j = tap - i * q->taps_w;
  at.x += floor_div(j * q->dilation_x + q->origin_x, q->step_x);
  at.y += floor_div(i * q->dilation_y + q->origin_y, q->step_y);
  return at;
}

/* Copies block kb of an item of work into a stage. */
INLINE void fetch_block(uint a, uint b, const Product *p, const Work *work, int kb, uint bar) {
  const Pixels *q = &p->pixels;
#if CONV == 1
  const int tap = kb / q->c_blocks, c = (kb - tap * q->c_blocks) * BK;
  mbar_expect(bar, BM / 64 * q->box_w * q->box_h * q->box_n * 128 + B_BYTES);
  UNROLL for (int i = 0; i < BM / 64; i++) {
    const int4 at = seen_by(q, box_at_number(q, work->bm * (BM / 64) + i), tap);
    fetch_box(a + i * 64 * 128, p->maps + (1 + tap) * 128, c, at.x, at.y, at.z, bar);
  }
  fetch_box(b, p->maps, c, work->bn * BN, tap, 0, bar);
#else
  const int4 at = box_at_number(q, kb);
  mbar_expect(bar, STAGE_BYTES);
  UNROLL for (int i = 0; i < BM / 64; i++) {
    const int block = work->bm * (BM / 64) + i, row = block / q->c_blocks, tap = min(row, q->taps - 1);
    /* Beyond the last tap, channels past the end are read, which are zeros. */
    const int c = (row < q->taps ? block - row * q->c_blocks : q->c_blocks) * 64;
    const int4 seen = seen_by(q, at, tap);
    fetch_box(a + i * BK * 128, p->maps + (1 + tap) * 128, c, seen.x, seen.y, seen.z, bar);
  }
  UNROLL for (int i = 0; i < BN / 64; i++) fetch_box(b + i * BK * 128, p->maps, work->bn * BN + i * 64, at.x, at.y, at.z, bar);
#endif
}

#if CONV == 1
/* Returns the offset of row r's pixel in the result, or -1 if the row does not have a pixel. */
INLINE long line_of(const Pixels *q, const Work *work, int r) {
  const int4 first = box_at_number(q, work->bm * (BM / 64) + r / 64);
  const int pixel = r % 64, line = pixel / q->box_w, image = line / q->box_h;
  const int x = first.x + pixel - line * q->box_w, y = first.y + line - image * q->box_h, n = first.z + image;
  const int inside = image < q->box_n & x < q->out_w & y < q->out_h & n < q->out_n;
  return inside ? q->y_off + n * q->y_n + y * q->y_h + x * q->y_w : -1;
}
#else
/* Returns the line (tap, c) of row r of the product, or -1 if it does not exist. */
INLINE long line_of(const Pixels *q, const Work *work, int r) {
  const int block = r / 64, tap = block / q->c_blocks, c = (block - tap * q->c_blocks) * 64 + r % 64;
  return tap < q->taps && c < q->c ? tap * q->c + c : -1;
}
#endif
#endif
