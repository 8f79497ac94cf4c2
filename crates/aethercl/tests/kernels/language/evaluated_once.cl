/* The target of a compound assignment is evaluated once. */
int next(int *at) { return (*at)++; }

kernel void evaluated_once(global int *out) {
  int at = 0;
  out[next(&at)] += 10;
  out[next(&at)]++;
  out[3] = at;
}
