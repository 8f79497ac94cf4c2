// Pointers to private variables, passed to functions and stored in memory
void add(int *p, int v) { *p += v; }
int sum(const int *p, int n) {
  int s = 0;
  for (int i = 0; i < n; i++) s += p[i];
  return s;
}
__kernel void k(__global int *y) {
  int i = get_global_id(0), a[4] = {i, 2, 3, 4}, b = 5;
  int *p[2] = {a, &b};
  add(&a[i & 3], 100);
  add(p[1], i);
  y[i] = sum(a, 4) * 10 + *p[i & 1];
}
