/* Returns the value of an f16 from its bits. Bits from 16 on must be 0. */
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
