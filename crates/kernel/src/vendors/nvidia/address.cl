/* address: y[0] = the device address of the buffer x.
 *
 * x  any bytes, not read
 * y  ulong (1)
 * Launch: one work-item. No defines. Launched by vendors/nvidia.
 */
__kernel void address(__global const uchar *x, __global ulong *y) { y[0] = (ulong)x; }
