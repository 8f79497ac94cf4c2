/* A scalar operand of a vector must fit the vector's elements. */
kernel void k(global float4 *f, global char4 *c, global int4 *i) {
  f[0] = f[1] * 2.0;
  c[0] = c[1] + 1;
  i[0] = i[1] * 2.0f;
  f[2] = f[1] * 2;
}
