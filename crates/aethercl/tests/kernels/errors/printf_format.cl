kernel void k(global float *out, float4 v) {
  printf("%d\n", out[0]);
  printf("%f %f\n", out[0]);
  printf("%v4f\n", v);
  printf("%q\n", 1);
  printf("%v4f\n", out[0]);
}
