constant int table[2] = {1, 2};

kernel void k(global const int *in, global int *out) {
  const int one = 1;
  one = 2;
  in[0] = 1;
  table[0] = 3;
  out[0]++;
}
