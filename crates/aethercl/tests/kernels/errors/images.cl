kernel void k(global float4 *out, read_only image2d_depth_t picture, sampler_t s) {
  out[0] = read_imagef(picture, s, (int2)(0, 0));
}
kernel void l(read_only image2d_t picture, write_only image3d_t volume) {
  image2d_t copy = picture;
  write_imagef(volume, (int4)(0), (float4)(get_image_depth(picture)));
}
