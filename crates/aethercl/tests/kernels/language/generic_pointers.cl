/* OpenCL C 2.0: a pointer without a space points anywhere but into constant memory. */
int first(const int *p) { return *p; }

kernel void generic_pointers(global int *out) {
  local int l;
  int p = 3;
  l = 20;
  int *any = out[0] ? (int *)out : &p;
  int *other = &l;
  out[1] = first(any) + first(other);
  out[2] = first(&p);
}
