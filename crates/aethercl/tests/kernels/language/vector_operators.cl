kernel void vector_operators(global const int4 *in, global int4 *out, global const float4 *f, global float4 *g) {
  int4 a = in[0], b = in[1];
  out[0] = a + b;
  out[1] = a * 2 - b;
  out[2] = a / b;
  out[3] = a % b;
  out[4] = a << (int4)(1, 2, 3, 4);
  out[5] = a >> 1;
  out[6] = -a | ~b;
  a += 1;
  a *= b;
  out[7] = a;
  out[8] = a++;
  out[9] = --a;
  g[0] = f[0] * f[1] + 1;
  g[1] = 2 / f[0];
  g[2] = -f[1];
}
