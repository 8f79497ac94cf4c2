kernel void k(global int *out, float4 v, double d) {
  out[0] = as_int(d);
  out[1] = as_int4(v).x;
  out[2] = as_int3(v).x;
  out[3] = as_short4(v).x;
}
