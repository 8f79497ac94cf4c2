/* Products of codes, and defaults for a format's source, which precedes this file.
 *
 *   dot4(sum, codes, x)  sum + the products of four codes (bytes of a word) and the four signed bytes of the int x, in 32-bit integers.
 *                        With PANELS, sum and codes have a lane for each of 16 rows.
 *
 * Defines: DOT and PANELS (codes.cl); NVIDIA_CC from 61 up uses dp4a; devices with cl_khr_integer_dot_product use its function.
 * Defaults: ZERO 0, SUB 32, LOW 0, SIGNED 0.
 */
#ifndef ZERO
#define ZERO 0
#endif
#ifndef SUB
#define SUB 32
#endif
#ifndef LOW
#define LOW 0
#endif
#ifndef SIGNED
#define SIGNED 0
#endif

#if DOT >= 2
/* The same for half of the rows. */
static inline int8 dot4_half(int8 sum, uint8 codes, int8 x) {
#if DOT == 2
  __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(codes), "x"(x));
  return sum;
#else
  const int8 ones = (int8)(0x00010001);
  int8 pairs, all;
#if SIGNED
  uint8 sizes;
  __asm__("vpabsb %1, %0" : "=x"(sizes) : "x"(codes));
  __asm__("vpsignb %2, %1, %0" : "=x"(x) : "x"(x), "x"(codes));
  codes = sizes;
#endif
  __asm__("vpmaddubsw %2, %1, %0" : "=x"(pairs) : "x"(codes), "x"(x));
  __asm__("vpmaddwd %2, %1, %0" : "=x"(all) : "x"(pairs), "x"(ones));
  return sum + all;
#endif
}
#endif

static inline I dot4(I sum, U codes, int x) {
#if DOT == 1
  const I of = (I)(x);
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(of));
  return sum;
#elif DOT
  const int8 of = (int8)(x);
  return (I)(dot4_half(sum.lo, codes.lo, of), dot4_half(sum.hi, codes.hi, of));
#elif !PANELS && NVIDIA_CC >= 61
  int r;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(codes), "r"(x), "r"(sum));
  return r;
#elif !PANELS && defined(__opencl_c_integer_dot_product_input_4x8bit_packed)
  return sum + dot_4x8packed_us_int(codes, as_uint(x));
#else
  sum += AS_I(codes & (U)(255u)) * (I)(x << 24 >> 24);
  sum += AS_I(codes >> (U)(8u) & (U)(255u)) * (I)(x << 16 >> 24);
  sum += AS_I(codes >> (U)(16u) & (U)(255u)) * (I)(x << 8 >> 24);
  return sum + AS_I(codes >> (U)(24u)) * (I)(x >> 24);
#endif
}
