/* Types and functions that the sources of all optimizers share (folder rules). Each source defines
 *
 *   advance(p, g, state..., s)  FV: updates STATES arrays of state in place, and returns the new parameter p for gradient g; s is Common
 *
 * The kernel optimizer_update (optimizer.cl) includes it and calls `advance` for VW elements at a time.
 *
 * Defines: RULE, the number of the optimizer; STATES, the number of its arrays of state, 0 to 3.
 */
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
