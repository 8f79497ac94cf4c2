kernel void increments(global int *out, global float *f, global uchar *b) {
  int i = 5;
  out[0] = i++;
  out[1] = ++i;
  out[2] = i--;
  out[3] = --i;
  global int *p = out + 4;
  *p++ = 1;
  *p++ = 2;
  *--p = 3;
  (*p)++;
  f[0]++;
  --f[1];
  b[0]++;
  b[1]--;
}
