struct flags {
  uint low : 4;
};

kernel void k(global uint *out) { out[0] = 1; }
