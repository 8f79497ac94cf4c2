/* SGD: `advance` for optimizer_update, see ../common.cl. First g += decay p. With momentum (STATES 1), m = momentum m + damp g, or m = g at the
 * first step; then g = m, or with NESTEROV g += momentum m. Finally p -= lr g. h0 and h1 are momentum and damp.
 */
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
