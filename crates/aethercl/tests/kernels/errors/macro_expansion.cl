/* The message names the place in the program and where the macro says it. */
#define LOAD(p, i) ((p)[i].value)
#define SUM(p, i) (LOAD(p, i) + LOAD(p, (i) + 1))

kernel void k(global int *out) {
  out[0] = SUM(out, 0);
}
