kernel void reinterpretation(global uint *out, global float *f, float x) {
  out[0] = as_uint(x);
  f[0] = as_float(0x40490fdbu);
  ushort2 halves = as_ushort2(x);
  out[1] = halves.y;
  uchar4 bytes = as_uchar4((uint)0x01020304);
  out[2] = bytes.x * 1000 + bytes.w;
  float v = 2.0f;
  out[3] = *(uint *)&v;
  out[4] = as_int4((float4)(1.0f)).z;
  out[5] = ((uint *)&v)[0] >> 24;
}
