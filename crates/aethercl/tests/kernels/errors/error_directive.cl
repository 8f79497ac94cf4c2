#define WIDTH 3
#if WIDTH != 4
#error WIDTH must be 4
#endif

kernel void k(global int *out) { out[0] = 1; }
