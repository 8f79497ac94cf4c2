// Differences, comparisons, casts between element types, pointers that walk
__kernel void k(__global int *y) {
  __global int *p = y, *end = y + 8;
  int n = 0;
  while (p < end) *p++ = n++;
  __global short *s = (__global short *)(y + 2);
  s[1] = 7;
  *(y + 8) = (int)(end - y) * 10 + (p == end) + (&y[3] != p);
  __global char *c = (__global char *)&y[4];
  c += 3;
  *c = 1;
  y[9] = (int)((__global int *)(c + 1) - y);
}
