typedef int T;
typedef int T;
typedef float T;

kernel void k(global T *out) { T T = 1; out[0] = T; }
