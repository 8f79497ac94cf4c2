kernel void k(global int *out) {
  int a[2] = {1, 2, 3};
  int b = {1, 2};
  int c[2] = 1;
  int d[] = {[3] = 1, [5] = 2};
  int e[2] = {[2] = 1};
  struct { int x; } f = {.y = 1};
  char g[3] = "long";
}
