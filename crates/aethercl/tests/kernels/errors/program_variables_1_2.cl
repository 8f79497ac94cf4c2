global int counter = 0;
static global float scale = 1.0f;
constant int fine = 1;

kernel void k(global int *out) {
  static int calls = 0;
  out[0] = fine;
}
