// A computed argument goes through two functions; what the first makes of it leaves it alone for the second
int first(int a) { const int t = a; const int u = t * 3; return u + t; }
int second(int a) { const int t = a + 1; return t * a; }
int both(int a) { return first(a) * 1000 + second(a); }
__kernel void k(__global const int *x, __global int *y) {
  int i = get_global_id(0);
  y[i] = both(x[i] + 1);
}
