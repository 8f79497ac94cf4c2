// printf as in C, with vectors
__kernel void k(__global const float4 *x) {
  int i = get_global_id(0);
  printf("item %d: %5.2f|%-6d|%06d|%x|%c|%s\n", i, x[i].x, i, -i, 255, 'a' + i, "text");
  printf("%v4f %v2hhx %lu %e %g\n", x[i], (uchar2)(1, 254), 1234567890123UL, x[i].y, x[i].z);
}
