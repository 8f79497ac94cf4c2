#line 100 "generated.cl"
kernel void k(global int *out) {
  out[0] = wrong;
}
#line 7
int f(void) { return other; }
