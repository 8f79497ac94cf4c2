/* Element-wise kernel with each operand in its own type: y = EXPR over x0, x1, …. Inputs are float (from f32, f16, bf16), int, uint, or
 * int 0 and 1 for a mask. The scalars s0, s1, … are long or float.
 *
 * PARAMS   parameters of the inputs: pointer pI and element offset oI each, then scalars sJ
 * SIZES    for FLAT 0: sizes dD of the axes, then for each input and for y its strides tI_D, ty_D
 * PLACES   sets aI and ay, the positions of element number k of the result
 * LOADS    loads xI
 * EXPR     the expression in OpenCL C
 * OUT      storage type of y: 0 f32, 1 f16, 2 bf16, 3 i32, 4 u32, 5 a mask
 * FLAT 1:  every operand has the layout of the result, or is one value.
 * n elements of the result in a grid-stride loop; no item touches another item's element. y may be an input with the same layout.
 *
 * Used for integers and for assignments to parts of tensors: exact, not fast. One element per work-item and iteration. Float
 * computations use `elementwise.cl`.
 */
#ifndef EXPR
#define EXPR x0
#define PARAMS __global const int *p0, ulong o0,
#define SIZES
#define PLACES const ulong a0 = o0 + k, ay = oy + k;
#define LOADS const int x0 = p0[a0];
#endif

#if OUT == 5
typedef uchar TYPED_T;
#define TYPED_STORE(p, i, v) ((p)[i] = (v) != 0)
#elif OUT == 4
typedef uint TYPED_T;
#define TYPED_STORE(p, i, v) ((p)[i] = (uint)(v))
#elif OUT == 3
typedef int TYPED_T;
#define TYPED_STORE(p, i, v) ((p)[i] = (int)(v))
#else
typedef OUT_T TYPED_T;
#define TYPED_STORE(p, i, v) OUT_1(p, i, (float)(v))
#endif

/* Quotient and remainder with Python's rules: the remainder has the divisor's sign. Division by 0, and the division that overflows, give an
 * unspecified result without a trap. */
static inline long floor_div(long a, long b) {
  if (b == 0) return 0;
  const long q = a / b;
  return q * b != a && (a < 0) != (b < 0) ? q - 1 : q;
}
static inline long floor_mod(long a, long b) { return b == 0 ? 0 : a - floor_div(a, b) * b; }
/* Integer power, wrapping; 0 for negative exponents. */
static inline ulong int_pow(ulong base, long e) {
  ulong y = 1;
  for (; e > 0; e >>= 1, base *= base) {
    if (e & 1) y *= base;
  }
  return e < 0 ? 0 : y;
}
/* fmod of floats is exact. The sign follows the divisor's sign, also for a zero result. */
static inline float float_mod(float a, float b) {
  const float r = fmod(a, b);
  return r == 0.0f ? copysign(0.0f, b) : (r < 0.0f) != (b < 0.0f) ? r + b : r;
}
static inline float float_floor_div(float a, float b) {
  if (b == 0.0f) return a / b;
  if (isinf(a) || isnan(a) || isnan(b)) return NAN;
  if (isinf(b)) return a == 0.0f ? copysign(0.0f, signbit(a) != signbit(b) ? -1.0f : 1.0f) : (a < 0.0f) != (b < 0.0f) ? -1.0f : 0.0f;
  const float q = (a - float_mod(a, b)) / b, whole = floor(q);
  return q == 0.0f ? copysign(0.0f, a / b) : q - whole > 0.5f ? whole + 1.0f : whole;
}

__kernel void typed(PARAMS SIZES __global TYPED_T *y, ulong oy, ulong n) {
  for (ulong k = get_global_id(0); k < n; k += get_global_size(0)) {
    PLACES
    LOADS
    TYPED_STORE(y, ay, EXPR);
  }
}
