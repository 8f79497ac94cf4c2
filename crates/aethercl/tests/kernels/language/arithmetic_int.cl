/* Integer operators on int: truncating division, wrapping through unsigned, shifts. */
kernel void arithmetic_int(global const int *a, global const int *b, global int *out) {
  size_t i = get_global_id(0);
  int x = a[i], y = b[i];
  global int *o = out + i * 8;
  o[0] = x + y;
  o[1] = x - y;
  o[2] = x * y;
  o[3] = x / y;
  o[4] = x % y;
  o[5] = x & y | x ^ ~y;
  o[6] = x << (y & 7);
  o[7] = x >> (y & 7);
}
