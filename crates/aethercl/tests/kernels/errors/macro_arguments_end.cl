#define F(a, b) a + b

kernel void k(global int *out) {
  out[0] = F(1, 2;
}
