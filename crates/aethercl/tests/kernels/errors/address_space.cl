kernel void k(global int *out, local int *scratch) {
  global int *p = scratch;
  int *q = out;
  local int *r = (local int *)out;
}
