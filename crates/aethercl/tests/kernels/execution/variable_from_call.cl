// A variable that begins as a variable of a function that has ended keeps its value while others are computed
uint row_of(uint r, uint group, uint *g) {
  const uint t = r / group;
  *g = r - t * group;
  return t;
}
__kernel void k(__global int *y, uint group, int n) {
  int e = get_global_id(0);
  uint g, t = row_of(e, group, &g);
  y[e] = e < n ? (int)(10 * t + g) : -1;
}
