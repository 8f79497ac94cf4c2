/* GELU by its tanh approximation (Hendrycks and Gimpel 2016) and its derivative, in f32, with the hardware's tanh of NVIDIA's sm_75 and later. This
 * is accurate enough for 16-bit results.
 *
 * gelu_tanh(x)       0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
 * gelu_tanh_grad(x)  its derivative at x
 *
 * No defines. The epilogues of matrix products and convolutions and the kernel gelu_recomputed use it. Other devices use gelu_tanh of
 * crates/kernel/src/generate/elementwise.cl, or ACT 1 of activation.cl.
 */
static inline float tanh_fast(float x) {
  float r;
  asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
static inline float gelu_tanh(float x) {
  return 0.5f * x * (1.0f + tanh_fast(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}
static inline float gelu_tanh_grad(float x) {
  const float t = tanh_fast(0.7978845608028654f * (x + 0.044715f * x * x * x));
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.7978845608028654f * (1.0f + 0.134145f * x * x);
}
