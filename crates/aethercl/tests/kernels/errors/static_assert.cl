#define TILE 24
_Static_assert(TILE % 16 == 0, "TILE must be a multiple of 16");

kernel void k(global int *out) { out[0] = TILE; }
