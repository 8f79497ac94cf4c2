/* Warnings are printed only where the build asks for them. */
#define N 4
#define N 5
#warning "look here"

int first(int *p) { return p[0]; }

kernel void k(global int *out) {
  const int a[2] = {1, 2, 3};
  char text[2] = "abc";
  out[0] = first(a) + out[1] / 0 + text[0];
}
