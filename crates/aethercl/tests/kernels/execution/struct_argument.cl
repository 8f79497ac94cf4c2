// A struct given by value
typedef struct { int a; float b; short c[2]; } args;
__kernel void k(args s, __global int *y) {
  y[get_global_id(0)] = s.a + (int)s.b * 10 + s.c[get_global_id(0) & 1];
}
