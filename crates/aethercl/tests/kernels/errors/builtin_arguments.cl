kernel void k(global float *out, float4 v) {
  out[0] = fma(1.0f, 2.0f);
  out[1] = dot(v, (float2)(1.0f));
  out[2] = vload4(0, v).x;
  vstore4(v, 0, (constant float *)0);
}
