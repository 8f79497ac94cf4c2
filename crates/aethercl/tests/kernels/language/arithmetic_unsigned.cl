kernel void arithmetic_unsigned(global const uint *a, global const uint *b, global uint *out) {
  size_t i = get_global_id(0);
  uint x = a[i], y = b[i];
  global uint *o = out + i * 5;
  o[0] = x + y;
  o[1] = x - y;
  o[2] = x * y;
  o[3] = x / y;
  o[4] = x % y;
}
