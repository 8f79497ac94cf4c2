// Tests of a vector give -1 or 0, as wide as its elements
__kernel void k(__global const float4 *x, __global int4 *y, __global const double2 *d, __global long2 *l) {
  y[0] = isnan(x[0]);
  y[1] = isless(x[0], (float4)(1.5f));
  y[2] = x[0] >= 2.0f;
  y[3] = (int4)(any(isnan(x[0])), all(isfinite(x[0])), any(y[2]), all((int2)(-1, -5)));
  l[0] = isgreater(d[0], (double2)(1.0));
  l[1] = signbit(d[0]);
}
