kernel void k(global int *out, int n) {
  switch (n) {
    case 1:
      int a = 2;
      out[0] = a;
    case 2: {
      int b = 3;
      out[1] = b;
    }
    case 3:
  }
}
