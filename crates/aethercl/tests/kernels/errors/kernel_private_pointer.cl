kernel void k(int *out) { out[0] = 1; }
