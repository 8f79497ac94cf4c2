kernel void k(global int *out) {
  long long a = 1;
  unsigned float b = 1;
  short int c = 1;
}
