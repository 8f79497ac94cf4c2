/* Lion (Chen et al. 2023, arXiv:2302.06675): `advance` for optimizer_update, see ../common.cl.
 * c = b1 m + (1 - b1) g, p -= lr (sign(c) + decay p), m = b2 m + (1 - b2) g.
 * h0 and h1 are 1 - b1 and 1 - b2.
 */
static inline FV advance(FV p, FV g, FV *m, Common s) {
  const FV c = fma((FV)(s.h0), g - *m, *m);
  *m = fma((FV)(s.h1), g - *m, *m);
  p = fma((FV)(-s.lr * s.decay), p, p);
  /* sign(NaN) is 0, which would hide the NaN. */
  return fma((FV)(-s.lr), isnan(c) ? c : sign(c), p);
}
