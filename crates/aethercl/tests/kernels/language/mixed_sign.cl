/* int with uint becomes uint; with long both become long. */
kernel void mixed_sign(global const int *s, global const uint *u, global int *out) {
  out[0] = s[0] < u[0];
  out[1] = s[0] < (long)u[0];
  out[2] = -1 < 1u;
  out[3] = s[0] / u[0] > 1000;
  out[4] = (short)-1 < (ushort)1;
}
