// vloadN needs the alignment of an element only; three lanes lie three apart
__kernel void k(__global const int *x, __global int *y) {
  vstore3(vload3(1, x), 0, y);
  vstore4(vload4(0, x + 1), 1, y);
  vstore2(vload8(0, x).s70, 5, y);
  vstore16(vload16(0, x), 1, y);
}
