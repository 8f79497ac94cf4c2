/* `goto`: out of nested loops, backwards, over other labels, different in each work-item. */
int search(int wanted) {
  int i, j;
  for (i = 0; i < 8; i++) {
    for (j = 0; j < 8; j++) {
      switch (i) {
      case 3:
        if (i * j == wanted) goto found;
      default:
        if (i * j == wanted + 1) continue;
      }
      if (i * 10 + j == wanted) goto found;
    }
  }
  return -1;
found:
  return i * 10 + j;
}

kernel void k(global int *out) {
  int id = get_global_id(0);
  int rounds = 0;
again:
  rounds++;
  if (rounds < id) goto again;
  int kept = rounds * 10;
  if (id & 1) goto odd;
  kept += 1000;
  goto done;
odd:
  kept += 2000;
done:
  for (int i = 0; i < 4; i++) {
    if (i == id) goto inner;
    if (i > id) break;
    kept += 1;
  inner:
    if (i == 2) continue;
    kept += 10000;
  }
  out[id] = kept;
  out[8 + id] = search(id * 3);
}
