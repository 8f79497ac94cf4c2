kernel void break_continue(global const int *limit, global int *out) {
  size_t i = get_global_id(0);
  int sum = 0;
  for (int j = 0;; j++) {
    if (j == limit[i]) break;
    if (j % 2) continue;
    for (int k = 0; k < 5; k++) {
      if (k > j) break;
      if (k == 1) continue;
      sum += k;
    }
    sum += 100;
  }
  out[i] = sum;
}
