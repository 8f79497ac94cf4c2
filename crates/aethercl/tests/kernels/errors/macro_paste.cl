#define JOIN(a, b) a##b

kernel void k(global int *out) {
  out[0] = JOIN(+, /);
}
