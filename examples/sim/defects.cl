/* Kernels with one defect each, which `netcl sim check` reports. */

/* Items add to the same word without an atomic operation. */
__kernel void race(__global const int *x, __global int *sum) { sum[0] += x[get_global_id(0)]; }

/* The last item reads past the end. */
__kernel void past(__global const float *x, __global float *y) {
  const uint i = get_global_id(0);
  y[i] = 0.5f * (x[i] + x[i + 1]);
}

/* A neighbor's value is read before it is guaranteed to be written. */
__kernel void no_barrier(__global const float *x, __global float *y) {
  __local float all[64];
  const uint l = get_local_id(0);
  all[l] = x[get_global_id(0)];
  y[get_global_id(0)] = all[(l + 1) % 64];
}

/* Half of the items do not reach the barrier. */
__kernel void divergent(__global float *y) {
  if (get_local_id(0) < 32) barrier(CLK_LOCAL_MEM_FENCE);
  y[get_global_id(0)] = 1.0f;
}

/* The sum starts from uninitialized memory. */
__kernel void unwritten(__global const float *x, __global float *y, uint n) {
  __local float sum;
  for (uint i = 0; i < n; i++)
    if (get_local_id(0) == 0) sum += x[i];
  if (get_local_id(0) == 0) y[0] = sum;
}
