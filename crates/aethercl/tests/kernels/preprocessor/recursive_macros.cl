/* A macro's own name in its expansion is left alone. */
constant int x = 1;
#define x (x + 10)
#define a b
#define b a

kernel void recursive_macros(global int *out) {
  int a = 5;
  out[0] = x;
  out[1] = a + a;
#define get_global_id(d) (get_global_id(d) + 100)
  out[2] = get_global_id(0);
}
