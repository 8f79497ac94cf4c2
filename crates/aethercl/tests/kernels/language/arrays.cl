kernel void arrays(global int *out) {
  int id = get_global_id(0);
  int a[4] = {id, id + 1};
  int b[2][3] = {{1, 2, 3}, {4}};
  int c[] = {[3] = 9, [1] = 7};
  int d[2][2] = {1, 2, 3, 4};
  a[id & 3] += 100;
  global int *o = out + id * 7;
  for (int i = 0; i < 4; i++) o[i] = a[i];
  o[4] = b[0][2] + b[1][0] + b[1][2];
  o[5] = c[0] + c[1] + c[3] + sizeof(c) / sizeof(c[0]);
  o[6] = d[1][0] * 10 + d[0][1];
}
