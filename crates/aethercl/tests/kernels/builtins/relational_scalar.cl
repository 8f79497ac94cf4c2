// Tests of a scalar give 1 or 0
__kernel void k(__global const float *x, __global int *y) {
  size_t i = get_global_id(0);
  y[i] = isnan(x[i]) | isinf(x[i]) << 1 | isfinite(x[i]) << 2 | isnormal(x[i]) << 3 | signbit(x[i]) << 4
       | isequal(x[i], 1.0f) << 5 | isunordered(x[i], 0.0f) << 6 | islessgreater(x[i], 1.0f) << 7;
}
