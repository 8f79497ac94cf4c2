// Local memory holds nothing when a group starts
__kernel void k(__global int *y) {
  __local int s[4];
  int l = get_local_id(0);
  if (l < 3) s[l] = l;
  barrier(CLK_LOCAL_MEM_FENCE);
  y[get_global_id(0)] = s[l];
}
