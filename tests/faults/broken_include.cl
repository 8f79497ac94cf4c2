/* An include with an error in its third line, for the test of build errors. */
static inline float half_of(float x) {
  return x * not_in_the_include;
}
