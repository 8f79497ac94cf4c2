/* GELU by its tanh approximation (Hendrycks and Gimpel 2016) and its derivative, with the hardware's tanh of NVIDIA's sm_75 and later. This is
 * accurate enough for 16-bit results. Elsewhere: gelu_tanh of crates/kernel/src/generate/elementwise.cl, ACT 1 of activation.cl.
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
