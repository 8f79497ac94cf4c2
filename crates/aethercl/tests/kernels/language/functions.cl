int add(int a, int b);

static inline int twice(int x) { return add(x, x); }
int add(int a, int b) { return a + b; }
void store(global int *at, int value) { *at = value; }
float mean(const float *values, int n) {
  float sum = 0;
  for (int i = 0; i < n; i++) sum += values[i];
  return sum / n;
}

kernel void functions(global int *out, global float *f) {
  store(out, twice(add(1, 2)));
  float v[4] = {1, 2, 3, 5};
  f[0] = mean(v, 4);
  f[1] = mean(v + 1, 2);
}
