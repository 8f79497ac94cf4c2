/* Cases fall through until a break; labels may share a statement. */
kernel void switch_cases(global const int *in, global int *out) {
  size_t i = get_global_id(0);
  int r = 0;
  switch (in[i]) {
    case 1:
      r += 1;
    case 2:
      r += 10;
      break;
    case 3:
    case 4: {
      int t = in[i];
      r = t * 100;
      break;
    }
    case -1:
      for (int k = 0; k < 3; k++) {
        if (k == 2) break;
        r++;
      }
      break;
    default:
      r = 7;
  }
  out[i] = r;
}
