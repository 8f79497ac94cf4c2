kernel void volatile_restrict(global volatile int *restrict p, const global int *restrict q, const int n) {
  volatile int t = n;
  const int *const inner = 0;
  p[0] = q[0] + t + (inner == 0);
}
