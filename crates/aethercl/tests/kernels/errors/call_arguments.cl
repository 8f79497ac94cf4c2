float twice(float x) { return 2.0f * x; }

kernel void k(global float *out) {
  out[0] = twice();
  out[1] = twice(1.0f, 2.0f);
  out[2] = twice(out);
}
