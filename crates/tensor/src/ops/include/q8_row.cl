/* Rows of D elements in 8 bits (ggml's q8_0 with the scales after the elements): (D + 3) / 4 words with one signed byte per element, 0 beyond D,
 * then one half per 32 elements, their scale. An element is byte * scale. A group with an element that is not finite is NaN.
 *
 * Defines: D.
 */
#define Q8_WORDS ((D + 3) / 4)
#define Q8_GROUPS ((D + 31) / 32)

static inline float q8_scale(__global const uint *row, int group) {
  return vload_half(2 * Q8_WORDS + group, (__global const half *)row);
}

/* Returns elements 4 c to 4 c + 3. */
static inline float4 q8_4(__global const uint *row, int c) { return convert_float4(as_char4(row[c])) * q8_scale(row, c / 8); }

/* Returns the stored scale of a group whose largest absolute value is `most`. */
static inline ushort q8_scale_of(float most) {
  ushort h;
  vstore_half_rte(most / 127.0f, 0, (half *)&h);
  return h;
}

/* Returns the larger absolute value; NaN stays NaN. */
static inline float q8_most(float most, float x) {
  const float a = fabs(x);
  return a > most || isnan(a) ? a : most;
}

/* Returns the byte of an element: 0 if the quotient is NaN, which drivers convert to an arbitrary byte. */
static inline char q8_of(float x, float scale) {
  const float quotient = x / scale;
  return scale == 0.0f || isnan(quotient) ? (char)0 : convert_char_sat_rte(quotient);
}
