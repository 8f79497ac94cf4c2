int one(void) { return 1; }

kernel void k(global int *out) {
  int (*f)(void) = one;
  out[0] = f();
}
