/* f16_value(bits): the bits of an f16 (uint) -> its value, a float. The bits above 16 must be 0.
 *
 * Defines: NVIDIA_CC; with it, one conversion instruction.
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
