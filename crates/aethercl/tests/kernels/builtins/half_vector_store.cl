// Vectors of halves
__kernel void k(__global const float4 *x, __global half *y) {
  vstore_half4(x[0], 0, y);
  vstorea_half3(x[0].xyz, 1, y);
}
