// A barrier in a function and in a loop of the same length for all
int shift(__local int *s, int v) {
  int l = get_local_id(0);
  s[l] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  int next = s[(l + 1) % get_local_size(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  return next;
}
__kernel void k(__global int *y) {
  __local int s[4];
  int v = get_global_id(0);
  for (int j = 0; j < 3; j++) v = shift(s, v) + 10;
  y[get_global_id(0)] = v;
}
