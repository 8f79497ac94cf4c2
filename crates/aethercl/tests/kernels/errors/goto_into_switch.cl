kernel void k(global int *out) {
  goto inside;
  switch (out[0]) {
  case 1: {
    int unused = 0;
  inside:
    out[1] = 1;
  }
  case 2:
  among:
    out[2] = 2;
  }
  goto nowhere;
}
