/* Adam (Kingma and Ba 2015): `advance` for optimizer_update, see ../common.cl. It is adamw.cl with weight decay in the gradient: g += decay p,
 * instead of the decayed p. h0 to h3 are 1 - b1, b2, 1 - b2 and eps.
 */
static inline FV advance(FV p, FV g, FV *m, FV *v, Common s) {
  g = decayed(g, p, s);
  *m = fma((FV)(s.h0), g - *m, *m);
  *v = fma((FV)(s.h1), *v, s.h2 * g * g);
  return fma((FV)(-s.lr), s.c1 * *m / fma(sqrt(*v), (FV)(s.c2), (FV)(s.h3)), p);
}
