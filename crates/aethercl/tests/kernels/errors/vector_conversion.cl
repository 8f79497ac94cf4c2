kernel void k(global int4 *out, global float4 *in) {
  out[0] = in[0];
  out[1] = (int4)in[0];
  out[2] = convert_int4(in[0]);
}
