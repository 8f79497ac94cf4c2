struct later;

kernel void k(global ulong *out, global struct later *p) {
  out[0] = sizeof(struct later);
  out[1] = sizeof(p);
  struct later here;
  p = p + 1;
}
