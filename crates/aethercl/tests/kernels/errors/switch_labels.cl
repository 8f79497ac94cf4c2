kernel void k(global int *out, int n) {
  switch (n) {
    case 1: out[0] = 1; break;
    case 1: out[0] = 2; break;
    case n: out[0] = 3; break;
    default: break;
    default: break;
  }
  switch (1.5f) { case 1: break; }
}
