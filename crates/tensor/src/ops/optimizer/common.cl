/* Shared parts of the optimizers' sources. RULE: the number of the optimizer; STATES: the number of its arrays of state. */
#ifndef RULE
#define RULE 0
#define STATES 2
#endif

/* Values that all elements of a step share: learning rate, weight decay, bias corrections, hyperparameters, and whether it is the first step. */
typedef struct {
  float lr, decay, c1, c2, h0, h1, h2, h3;
  bool start;
} Common;

/* Returns the gradient with weight decay. Without decay the parameter is ignored: if it is infinite, 0 times infinity would be NaN. */
static inline FV decayed(FV g, FV p, Common s) {
  if (s.decay != 0.0f) g = fma((FV)(s.decay), p, g);
  return g;
}
