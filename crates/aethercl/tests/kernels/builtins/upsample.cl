// Two halves make a number of twice the width
__kernel void k(__global short *s, __global int *i, __global long *l, __global ulong2 *v) {
  s[0] = upsample((char)-1, (uchar)2);
  i[0] = upsample((short)-2, (ushort)0xfffe);
  l[0] = upsample(1, 0xffffffffu);
  v[0] = upsample((uint2)(1u, 2u), (uint2)(3u, 4u));
}
