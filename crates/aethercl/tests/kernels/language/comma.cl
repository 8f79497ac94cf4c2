kernel void comma(global int *out) {
  int a, b;
  a = 1, b = 2;
  out[0] = (a += 5, b += a, a * b);
  for (a = 0, b = 10; a < b; a++, b--) out[1] = b;
}
