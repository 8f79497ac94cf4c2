/* f16_value(bits): returns the value, a float, of an f16 whose bits are in a uint. The upper 16 bits must be 0.
 *
 * Define: NVIDIA_CC; if it is not 0, one conversion instruction is used.
 */
#if NVIDIA_CC
static inline float f16_value(uint bits) {
  float r;
  asm("{\n\t.reg .b16 h, none;\n\tmov.b32 {h, none}, %1;\n\tcvt.f32.f16 %0, h;\n\t}" : "=f"(r) : "r"(bits));
  return r;
}
#else
static inline float f16_value(uint bits) {
  const ushort h = (ushort)bits;
  return vload_half(0, (const half *)&h);
}
#endif
