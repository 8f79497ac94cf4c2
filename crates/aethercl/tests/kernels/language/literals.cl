kernel void literals(global long *out, global float *f) {
  out[0] = 0x7fffffff + 0L;
  out[1] = 0xffffffff;
  out[2] = 4294967296;
  out[3] = 017;
  out[4] = 0b101;
  out[5] = 'A' + '\n' + '\x10' + '\101';
  out[6] = 10u - 11u > 0;
  out[7] = sizeof(1) + sizeof(1u) * 10 + sizeof(1L) * 100 + sizeof(1.0f) * 1000;
  out[8] = -2147483648;
  f[0] = 1e3f;
  f[1] = 0x1.8p3f;
  f[2] = .5f;
  f[3] = 3.f;
  f[4] = 1.17549435e-38f;
  f[5] = 16777217.0f;
}
