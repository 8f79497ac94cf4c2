/* -1 where true, 0 where false, in integers as wide as the elements. */
kernel void vector_comparisons(global int4 *out, float4 a, float4 b, short4 s) {
  out[0] = a < b;
  out[1] = a == b;
  out[2] = !(a != b);
  out[3] = (a < b) && (b < 3.0f);
  out[4] = (a > b) || (a == b);
  out[5] = convert_int4(s > (short4)(2));
  out[6] = !(int4)(0, 5, 0, -1);
}
