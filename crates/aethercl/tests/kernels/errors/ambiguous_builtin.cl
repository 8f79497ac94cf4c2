kernel void k(global uint *out, int a, uint b) {
  out[0] = min(a, b);
  out[1] = min((uint)a, b);
  out[2] = sqrt(2);
}
