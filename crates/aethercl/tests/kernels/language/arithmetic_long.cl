kernel void arithmetic_long(global const long *a, global long *out, global ulong *wide) {
  long x = a[0], y = a[1];
  out[0] = x * y;
  out[1] = x / y;
  out[2] = x % y;
  out[3] = x >> 33;
  wide[0] = (ulong)x * 3;
  wide[1] = (ulong)x >> 33;
  wide[2] = (ulong)x / 10;
  wide[3] = (ulong)x % 10;
}
