// A float4 at an address that is not a multiple of 16
__kernel void k(__global float *x) {
  *(__global float4 *)(x + 1) = (float4)(0.0f);
}
