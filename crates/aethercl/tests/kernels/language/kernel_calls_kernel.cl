kernel void half_of(global int *out) { out[get_global_id(0)] /= 2; }

kernel void kernel_calls_kernel(global int *out) {
  out[get_global_id(0)] += 10;
  half_of(out);
}
