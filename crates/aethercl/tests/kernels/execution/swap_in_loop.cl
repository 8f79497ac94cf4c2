// Values that change places every round
__kernel void k(__global int *y) {
  int i = get_global_id(0), a = 0, b = 1;
  for (int j = 0; j < i; j++) {
    int t = a + b;
    a = b;
    b = t;
  }
  int2 v = (int2)(a, b);
  v = v.yx;
  y[2 * i] = v.x;
  y[2 * i + 1] = v.y;
}
