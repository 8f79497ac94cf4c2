kernel void assignment_operators(global int *out) {
  int x = 10;
  x += 5;  out[0] = x;
  x -= 3;  out[1] = x;
  x *= 4;  out[2] = x;
  x /= 5;  out[3] = x;
  x %= 6;  out[4] = x;
  x <<= 5; out[5] = x;
  x >>= 2; out[6] = x;
  x |= 9;  out[7] = x;
  x &= 13; out[8] = x;
  x ^= 7;  out[9] = x;
  x = out[10] = 3;
  out[11] = x;
  x += 1.75f;
  out[12] = x;
}
