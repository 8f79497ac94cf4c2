local int shared;
private int own;
constant int fixed = 1;
const global int also_fixed = 2;
global int *constant moved = &also_fixed;

kernel void k(global int *out) {
  fixed = 2;
  also_fixed = 3;
  global int inside;
}
