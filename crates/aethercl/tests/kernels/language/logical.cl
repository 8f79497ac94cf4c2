/* The right side runs only where it decides. */
int count(int *calls, int result) {
  *calls += 1;
  return result;
}

kernel void logical(global int *out) {
  int calls = 0;
  out[0] = 0 && count(&calls, 1);
  out[1] = calls;
  out[2] = 1 || count(&calls, 1);
  out[3] = calls;
  out[4] = 5 && count(&calls, 3);
  out[5] = 0 || count(&calls, 0);
  out[6] = calls;
  out[7] = !5 + !0;
  out[8] = 2.5f && !0.0f;
}
