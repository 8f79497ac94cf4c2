/* A program-scope variable that kernels write is a separate object. */
global int table[4];
kernel void k(global const int *in) {
  table[in[get_global_id(0)]] = 1;
}
