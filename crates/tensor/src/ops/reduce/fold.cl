/* Reduction of an axis in the elements' own type: y[o, p, i] = x[o, j, i] over part p of the axis, combined by OP in order.
 *
 * IN, RES   storage types of x and y: 0 f32, 1 f16, 2 bf16, 3 i32, 4 u32, 5 a mask
 * ACC       type of the accumulator: float, int or uint
 * OP        SUM, PROD, MAX, MIN, ANY or ALL
 * x starts at element ox; an axis is divided into parts of `per` elements; `total` results are divided between the work-items, each of which
 * computes whole results. MAX and MIN of floats are NaN if an element is NaN.
 */
#ifndef ACC
#define IN 3
#define RES 3
#define ACC uint
#define OP SUM
#endif

#if IN == 0
typedef float IN_T;
#define FOLD_LOAD(i) x[i]
#elif IN == 1
typedef half IN_T;
#define FOLD_LOAD(i) vload_half((i), x)
#elif IN == 2
typedef ushort IN_T;
#define FOLD_LOAD(i) of_bf16(x[i])
#elif IN == 3
typedef int IN_T;
#define FOLD_LOAD(i) x[i]
#elif IN == 5
typedef uchar IN_T;
#define FOLD_LOAD(i) (x[i] != 0)
#else
typedef uint IN_T;
#define FOLD_LOAD(i) x[i]
#endif
#if RES == 1
typedef half RES_T;
#define FOLD_STORE(i, v) vstore_half_rte((float)(v), (i), y)
#elif RES == 2
typedef ushort RES_T;
#define FOLD_STORE(i, v) (y[i] = bf16_of((float)(v)))
#elif RES == 0
typedef float RES_T;
#define FOLD_STORE(i, v) (y[i] = (v))
#elif RES == 3
typedef int RES_T;
#define FOLD_STORE(i, v) (y[i] = (int)(v))
#elif RES == 5
typedef uchar RES_T;
#define FOLD_STORE(i, v) (y[i] = (v) != 0)
#else
typedef uint RES_T;
#define FOLD_STORE(i, v) (y[i] = (uint)(v))
#endif

#define START_SUM 0
#define START_PROD 1
#define START_ANY 0
#define START_ALL 1
#define START_MAX (ACC) x_first
#define START_MIN (ACC) x_first
#define JOIN_SUM(a, v) ((a) + (ACC)(v))
#define JOIN_PROD(a, v) ((a) * (ACC)(v))
#define JOIN_ANY(a, v) ((a) || (v) != 0)
#define JOIN_ALL(a, v) ((a) && (v) != 0)
#define JOIN_MAX(a, v) ((a) != (a) ? (a) : (v) > (a) || (v) != (v) ? (v) : (a))
#define JOIN_MIN(a, v) ((a) != (a) ? (a) : (v) < (a) || (v) != (v) ? (v) : (a))

__kernel void fold(__global const IN_T *x, __global RES_T *y, ulong ox, ulong axis, ulong inner, ulong parts, ulong per, ulong total) {
  for (ulong k = get_global_id(0); k < total; k += get_global_size(0)) {
    const ulong i = k % inner, part = k / inner % parts, o = k / inner / parts;
    const ulong begin = part * per, end = min(axis, begin + per), at = ox + o * axis * inner + i;
    /* Not used for an empty axis: the maximum of an empty axis is rejected. */
    const ACC x_first = begin < end ? (ACC)FOLD_LOAD(at + begin * inner) : (ACC)0;
    ACC a = CAT(START_, OP);
    for (ulong j = begin; j < end; j++) {
      const ACC v = (ACC)FOLD_LOAD(at + j * inner);
      a = (ACC)CAT(JOIN_, OP)(a, v);
    }
    FOLD_STORE(k, a);
  }
}
