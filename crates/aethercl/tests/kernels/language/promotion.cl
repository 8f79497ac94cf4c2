/* Operands narrower than int become int before anything is done to them. */
kernel void promotion(global const uchar *bytes, global const char *chars, global int *out) {
  uchar a = bytes[0], b = bytes[1];
  out[0] = a + b;
  out[1] = (uchar)(a + b);
  out[2] = ~a;
  out[3] = a << 4;
  out[4] = chars[0] + chars[1];
  out[5] = (char)(chars[0] + chars[1]);
  a += b;
  out[6] = a;
  out[7] = -b;
}
