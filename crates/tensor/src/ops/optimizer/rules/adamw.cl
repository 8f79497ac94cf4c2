/* AdamW (Loshchilov and Hutter 2017, arXiv:1711.05101): `advance` for optimizer_update, see ../common.cl.
 * m += (1 - b1) (g - m), v = b2 v + (1 - b2) g^2, p -= lr decay p, p -= lr m c1 / (sqrt(v) c2 + eps).
 * c1 and c2 are the bias corrections of a step. h0 to h3 are 1 - b1, b2, 1 - b2 and eps.
 */
static inline FV advance(FV p, FV g, FV *m, FV *v, Common s) {
  *m = fma((FV)(s.h0), g - *m, *m);
  *v = fma((FV)(s.h1), *v, s.h2 * g * g);
  p = fma((FV)(-s.lr * s.decay), p, p);
  return fma((FV)(-s.lr), s.c1 * *m / fma(sqrt(*v), (FV)(s.c2), (FV)(s.h3)), p);
}
