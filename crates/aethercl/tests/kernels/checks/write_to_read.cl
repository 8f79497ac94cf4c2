// The launch declared x as read
__kernel void k(__global int *x) { x[get_global_id(0)] = 1; }
