/* Options that another vendor's compiler takes: the build goes on and says so. */
kernel void k(global int *out) { out[0] = N; }
