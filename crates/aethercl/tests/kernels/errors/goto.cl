kernel void k(global int *out) {
  if (out[0]) goto end;
  out[1] = 1;
end:
  out[2] = 1;
}
