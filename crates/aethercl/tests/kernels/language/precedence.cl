kernel void precedence(global int *out) {
  out[0] = 2 + 3 * 4 - 6 / 2;
  out[1] = 1 << 2 + 1;
  out[2] = 7 & 3 == 3;
  out[3] = 1 | 2 ^ 3 & 4;
  out[4] = 10 - 4 - 3;
  out[5] = -2 * -3;
  out[6] = 1 + 2 < 4 && 2 > 1 || 0;
  out[7] = 0 ? 1 : 0 ? 2 : 3;
  out[8] = !1 == 0;
  out[9] = ~0 + 1;
}
