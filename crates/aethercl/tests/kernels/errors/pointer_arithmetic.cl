kernel void k(global int *a, global float *b) {
  a = a * 2;
  a = a + 1.5f;
  long d = a - b;
  if (a == b) return;
  a = a + b;
}
