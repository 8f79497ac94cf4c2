int twice(int x) { return 2 * x; }
int twice(int x) { return x + x; }

kernel void k(global int *out) {
  int a = 1;
  float a = 2.0f;
  out[0] = a;
}
