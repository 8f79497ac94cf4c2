// A histogram in local memory
__kernel void k(__global const int *x, __global int *y) {
  __local int bins[4];
  int l = get_local_id(0);
  if (l < 4) bins[l] = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  atomic_inc(&bins[x[get_global_id(0)] & 3]);
  barrier(CLK_LOCAL_MEM_FENCE);
  if (l < 4) atomic_add(&y[l], bins[l]);
}
