#define ADD(a, b) ((a) + (b))

kernel void k(global int *out) {
  out[0] = ADD(1);
  out[1] = ADD(1, 2, 3);
  out[2] = ADD(1, (2, 3));
}
