// Tables of program scope, strings, pointers among them
__constant int table[4] = {10, 20, 30, 40};
__constant float4 v = (float4)(1, 2, 3, 4);
__constant struct { int a; int b[2]; } s = {7, {8, 9}};
__kernel void k(__global int *y) {
  int i = get_global_id(0);
  __constant char *text = "abcd";
  y[i] = table[i] + (int)v.z + s.b[i & 1] + text[3 - i];
}
