struct pair { int first; int second; };

kernel void k(global int *out, global struct pair *p) {
  out[0] = p->frist;
  out[1] = p.first;
  struct pair q = {1, 2, 3};
  out[2] = q->first;
}
