// Integer functions of uchar: saturation, halving, high products, bits
__kernel void k(__global const uchar *x, __global const uchar *z, __global uchar *y) {
  size_t i = get_global_id(0);
  uchar a = x[i], b = z[i];
  y[15 * i + 0] = add_sat(a, b);
  y[15 * i + 1] = sub_sat(a, b);
  y[15 * i + 2] = hadd(a, b);
  y[15 * i + 3] = rhadd(a, b);
  y[15 * i + 4] = mul_hi(a, b);
  y[15 * i + 5] = rotate(a, b);
  y[15 * i + 6] = min(a, b);
  y[15 * i + 7] = max(a, b);
  y[15 * i + 8] = mad_sat(a, b, a);
  y[15 * i + 9] = mad_hi(a, b, a);
  y[15 * i + 10] = clz(a);
  y[15 * i + 11] = popcount(a);
  y[15 * i + 12] = (uchar)abs(a);
  y[15 * i + 13] = (uchar)abs_diff(a, b);
  y[15 * i + 14] = clamp(a, (uchar)2, (uchar)9);
}
