kernel void k(global int *out) { out[0] = 1; }
/* a comment without end
kernel void l(global int *out) { out[0] = x; }
