// ++, -- and compound assignments on variables, lanes, array elements and memory; the place is found once
__kernel void k(__global int *y) {
  int i = 0, a[3] = {5, 6, 7};
  a[i++] += 10;
  a[i++] *= 2;
  int4 v = (int4)(1, 2, 3, 4);
  v.y++;
  int old = v.z--;
  v.s0 -= old;
  y[0]++;
  y[1] = y[0]-- + --y[0];
  y[2] = a[0] * 10000 + a[1] * 100 + i;
  y[3] = v.x * 1000 + v.y * 100 + v.z * 10 + old;
  float f = 3;
  f /= 2;
  i = f;
  i <<= 3;
  y[4] = i + (i ^= 5);
}
