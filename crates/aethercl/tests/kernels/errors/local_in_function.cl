void helper(global float *out) {
  local float scratch[4];
  out[0] = 1.0f;
}

kernel void k(global float *out) {
  local float fine[4];
  local float wrong[4] = {0.0f};
  helper(out);
}
