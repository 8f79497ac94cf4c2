/* Adam (Kingma and Ba 2015): like AdamW, but with g += decay p instead of the decayed p. h0 … h3: 1 - b1, b2, 1 - b2, eps. */
static inline FV advance(FV p, FV g, FV *m, FV *v, Common s) {
  g = decayed(g, p, s);
  *m = fma((FV)(s.h0), g - *m, *m);
  *v = fma((FV)(s.h1), *v, s.h2 * g * g);
  return fma((FV)(-s.lr), s.c1 * *m / fma(sqrt(*v), (FV)(s.c2), (FV)(s.h3)), p);
}
