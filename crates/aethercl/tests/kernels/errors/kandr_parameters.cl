int add(a, b) int a; int b; { return a + b; }

kernel void k(global int *out) { out[0] = add(1, 2); }
