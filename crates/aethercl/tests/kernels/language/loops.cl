/* Work-items of one group leave their loops at different rounds. */
kernel void loops(global const int *n, global int *out) {
  size_t i = get_global_id(0);
  int sum = 0, k = 0;
  for (int j = 1; j <= n[i]; j++) sum += j;
  while (k * k < n[i]) k++;
  int digits = 0, rest = n[i];
  do {
    digits++;
    rest /= 10;
  } while (rest);
  out[i * 3] = sum;
  out[i * 3 + 1] = k;
  out[i * 3 + 2] = digits;
}
