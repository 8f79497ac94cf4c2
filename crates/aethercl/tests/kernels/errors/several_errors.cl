/* One build reports each of them. */
kernel void k(global int *out) {
  out[0] = a;
  out[1] = ;
  float4 v = (float4)(1.0f, 2.0f, 3.0f);
  out[2] = v.q;
  break;
}
int late(int x) { return y; }
