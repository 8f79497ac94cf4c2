kernel void (global int *out) { out[0] = 1; }

int (int x) { return x; }

kernel void k(global int *out) { out[0] = 1; }
