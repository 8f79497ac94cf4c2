/* SGD: g += decay p; with momentum m = momentum m + damp g (g at the first step), and g = m, or g += momentum m with NESTEROV;
 * p -= lr g. h0, h1: momentum, damp. */
#if STATES == 0
static inline FV advance(FV p, FV g, Common s) {
  g = decayed(g, p, s);
#else
static inline FV advance(FV p, FV g, FV *m, Common s) {
  g = decayed(g, p, s);
  *m = s.start ? g : fma((FV)(s.h0), *m, s.h1 * g);
#if NESTEROV
  g = fma((FV)(s.h0), *m, g);
#else
  g = *m;
#endif
#endif
  return fma((FV)(-s.lr), g, p);
}
