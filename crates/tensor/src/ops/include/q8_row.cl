/* Rows of D elements in 8 bits (ggml's q8_0 with the scales behind the elements): (D + 3) / 4 words with a signed byte each element, 0 beyond D,
 * then a half for every 32 elements, their scale. An element is byte * scale. A group with an element that is not finite is NaN.
 *
 * Defines: D.
 */
#define Q8_WORDS ((D + 3) / 4)
#define Q8_GROUPS ((D + 31) / 32)

static inline float q8_scale(__global const uint *row, int group) {
  return vload_half(2 * Q8_WORDS + group, (__global const half *)row);
}

/* Elements 4 c to 4 c + 3. */
static inline float4 q8_4(__global const uint *row, int c) { return convert_float4(as_char4(row[c])) * q8_scale(row, c / 8); }

/* The scale of a group whose largest absolute value is `most`, as it is stored. */
static inline ushort q8_scale_of(float most) {
  ushort h;
  vstore_half_rte(most / 127.0f, 0, (half *)&h);
  return h;
}

/* The larger absolute value; NaN stays. */
static inline float q8_most(float most, float x) {
  const float a = fabs(x);
  return a > most || isnan(a) ? a : most;
}

/* The byte of an element: 0 where the quotient is NaN, which drivers convert to any byte. */
static inline char q8_of(float x, float scale) {
  const float quotient = x / scale;
  return scale == 0.0f || isnan(quotient) ? (char)0 : convert_char_sat_rte(quotient);
}
