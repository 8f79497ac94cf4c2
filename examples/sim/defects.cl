/* Kernels with one defect each, to see what `netcl sim check` says. */

/* Items add into the same word without an atomic. */
__kernel void race(__global const int *x, __global int *sum) { sum[0] += x[get_global_id(0)]; }

/* The last item reads past the end. */
__kernel void past(__global const float *x, __global float *y) {
  const uint i = get_global_id(0);
  y[i] = 0.5f * (x[i] + x[i + 1]);
}

/* A neighbour's value is read before it is known to be there. */
__kernel void no_barrier(__global const float *x, __global float *y) {
  __local float all[64];
  const uint l = get_local_id(0);
  all[l] = x[get_global_id(0)];
  y[get_global_id(0)] = all[(l + 1) % 64];
}

/* Half of the items never reach the barrier. */
__kernel void divergent(__global float *y) {
  if (get_local_id(0) < 32) barrier(CLK_LOCAL_MEM_FENCE);
  y[get_global_id(0)] = 1.0f;
}

/* The sum starts from whatever is there. */
__kernel void unwritten(__global const float *x, __global float *y, uint n) {
  __local float sum;
  for (uint i = 0; i < n; i++)
    if (get_local_id(0) == 0) sum += x[i];
  if (get_local_id(0) == 0) y[0] = sum;
}
