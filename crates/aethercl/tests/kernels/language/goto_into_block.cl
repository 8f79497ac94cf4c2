/* `goto` into blocks: of `if`, `else` and loops, over their heads; each work-item its own way. */
int walk(int from) {
  int sum = 0, i = 3;
  if (from == 1) goto in_while;
  if (from == 2) goto in_for;
  if (from == 3) goto deep;
  if (from == 4) goto in_do;
  sum += 1;
  while (i > 0) {
    sum += 10;
  in_while:
    sum += 100;
    i--;
  }
  for (i = 0; i < 3; i++) {
    sum += 1000;
  in_for:
    if (i == 1) continue;
    sum += 10000;
  }
  do {
    if (sum < 0) {
      sum = 7;
    } else {
      sum += 100000;
      while (i > 100) {
      deep:
        sum += 1000000;
        i = 0;
      }
    }
  in_do:
    i += 2;
  } while (i < 4);
  return sum;
}

kernel void k(global int *out) {
  int id = get_global_id(0);
  out[id] = walk(id);
  int kept = 0;
  if (id & 1) goto otherwise;
  if (id > 1) {
    kept += 1;
    if (id == 6) goto otherwise;
  } else {
    kept += 10;
  otherwise:
    kept += 100;
  }
  {
    int inner = 5;
    kept += inner;
    if (kept < 50) goto otherwise;
  }
  out[8 + id] = kept;
}
