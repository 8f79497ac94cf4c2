union word {
  float f;
  uint u;
  uchar bytes[4];
};

kernel void unions(global uint *out) {
  union word w;
  w.f = 1.0f;
  out[0] = w.u;
  w.bytes[3] = 0x40;
  out[1] = w.u;
  union word v = {.u = 0x01020304};
  out[2] = v.bytes[0];
}
