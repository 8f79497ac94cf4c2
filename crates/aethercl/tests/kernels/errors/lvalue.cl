kernel void k(global int *out, int a) {
  (a + 1) = 2;
  5 = a;
  a++ = 3;
  int b[2];
  b = b;
  &a = 0;
}
