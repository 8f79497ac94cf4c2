// Where a buffer lies: x (any) -> address (1) ulong, by one work-item.
__kernel void address(__global const uchar *x, __global ulong *y) { y[0] = (ulong)x; }
