/* Activations of feed-forward layers and their derivatives, in f32.
 *
 * activation(x, slope)  returns the activation at x, and writes its derivative at x to `slope`; x is an AV. ReLU and its derivative keep NaN.
 *
 * Defines
 * ACT  0 SiLU, 1 GELU by its tanh approximation (Hendrycks and Gimpel 2016), 2 GELU, 3 ReLU [default: 0]
 * AV   type of the argument: float or a vector of floats [default: FV]
 *
 * The kernels gated, matmul_gemv and decode_step include it.
 */
#ifndef ACT
#define ACT 0
#endif
#ifndef AV
#define AV FV
#endif

/* Computes sigmoid(u) from e = exp(-|u|), which is at most 1: both sides keep their digits and do not overflow. */
#define SIGMOID(u, e) (((u) < 0.0f ? (e) : (AV)(1.0f)) / (1.0f + (e)))
#define TANH_U(x) (1.59576912f * ((x) + 0.044715f * (x) * (x) * (x)))

/* Returns the activation at x, and writes its derivative to `slope`. */
static inline AV activation(AV x, AV *slope) {
#if ACT == 0
  const AV e = EXP(-fabs(x)), s = SIGMOID(x, e);
  *slope = s + x * (e / ((1.0f + e) * (1.0f + e)));
  return x * s;
#elif ACT == 1
  const AV u = TANH_U(x), e = EXP(-fabs(u)), s = SIGMOID(u, e);
  *slope = s + x * (e / ((1.0f + e) * (1.0f + e))) * (1.59576912f * (1.0f + 0.134145f * x * x));
  return x * s;
#elif ACT == 2
  const AV s = 0.5f * erfc(-0.70710678f * x);
  *slope = s + x * 0.39894228f * EXP(-0.5f * x * x);
  return x * s;
#else
  *slope = x > 0.0f ? (AV)(1.0f) : (AV)(0.0f);
  return x > 0.0f || isnan(x) ? x : (AV)(0.0f);
#endif
}
