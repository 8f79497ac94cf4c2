/* Shift counts are taken modulo the width. */
kernel void shift_modulo(global int *out, global long *wide, int n) {
  out[0] = 1 << n;
  out[1] = -8 >> n;
  out[2] = (uint)-8 >> n;
  wide[0] = 1L << n;
  wide[1] = 1L << (n + 32);
  uchar4 v = (uchar4)(1, 2, 3, 4) << (uchar4)(9, 8, 1, 0);
  out[3] = v.x + v.y * 10 + v.z * 100;
}
