// OpenCL C 2.0: a pointer whose space is known only when it runs
int get(int *p) { return *p; }
__kernel void k(__global int *x, __global int *y) {
  __local int s[4];
  int i = get_local_id(0), own = 100 + i;
  s[i] = 10 * i;
  barrier(CLK_LOCAL_MEM_FENCE);
  int *p = i == 0 ? (int *)x : i == 1 ? (int *)&s[3] : (int *)&own;
  y[i] = get(p);
}
