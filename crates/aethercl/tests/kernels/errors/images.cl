kernel void k(global float4 *out, read_only image2d_t picture, sampler_t s) {
  out[0] = read_imagef(picture, s, (int2)(0, 0));
}
