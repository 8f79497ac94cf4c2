// Neighboring bytes and halves of a word from different work-items
__kernel void k(__global uchar *c, __global ushort *s) {
  int i = get_global_id(0);
  c[i] = i * 3;
  s[7 - i] = i * 1000;
}
