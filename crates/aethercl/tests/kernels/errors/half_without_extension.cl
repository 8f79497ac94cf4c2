#ifdef cl_khr_fp16
#error this case is for a device without cl_khr_fp16
#endif
kernel void k(global half *out) {
  half h = 1.0f;
  out[0] = 2.0f;
  float f = out[1];
  vstore_half(f, 0, out);
}
