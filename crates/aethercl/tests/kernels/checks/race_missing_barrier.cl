// Without a barrier, a neighbor's element may not be written yet
__kernel void k(__global int *y) {
  __local int s[8];
  int l = get_local_id(0);
  s[l] = l * l;
  y[get_global_id(0)] = s[7 - l];
}
