local int shared_result(void) { return 1; }

kernel void k(global int *out) {
  if (out[0]) int a = 1;
  for (;;) float b;
  while (out[1]) out[1]--;
}
