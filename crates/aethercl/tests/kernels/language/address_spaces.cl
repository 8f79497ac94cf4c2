/* A pointer parameter belongs to one address space, so each space needs its own helper. */
int first_global(global const int *p) { return p[0]; }
int first_local(local const int *p) { return p[0]; }
int first_constant(constant int *p) { return p[0]; }
int first_private(const int *p) { return p[0]; }
constant int c[2] = {4, 5};

kernel void address_spaces(global int *out, constant int *k) {
  local int l[1];
  int p = 3;
  if (get_local_id(0) == 0) l[0] = 2;
  barrier(CLK_LOCAL_MEM_FENCE);
  int g = out[get_global_id(0)];
  out[get_global_id(0)] = first_global(out + get_global_id(0)) + first_local(l) * 10 + first_private(&p) * 100 +
                          first_constant(c) * 1000 + first_constant(k + 1) * 10000 + g - g;
}
