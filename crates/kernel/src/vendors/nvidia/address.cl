// Returns the address of a buffer: x (any) -> address (1) ulong, with one work-item.
__kernel void address(__global const uchar *x, __global ulong *y) { y[0] = (ulong)x; }
