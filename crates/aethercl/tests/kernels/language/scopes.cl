/* Inner names hide outer ones, tags and ordinary names are apart. */
constant int x = 1;
struct x { int x; };

kernel void scopes(global int *out) {
  out[0] = x;
  int x = 2;
  out[1] = x;
  {
    int x = 3;
    out[2] = x;
    for (int x = 4; x < 5; x++) out[3] = x;
    out[4] = x;
  }
  struct x s = {6};
  out[5] = s.x + x;
}
