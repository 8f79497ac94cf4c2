kernel void k(global int *out) {
  out[0] = 09;
  out[1] = 12abc;
  out[2] = 0x;
  out[3] = 1.5g;
  out[4] = 99999999999999999999;
  out[5] = '';
  out[6] = 'ab';
  out[7] = '\q';
}
