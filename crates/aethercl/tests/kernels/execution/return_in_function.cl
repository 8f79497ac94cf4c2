// A function returns early for some; its caller goes on for all
int f(int x) {
  if (x < 2) return 100;
  for (int i = 0; i < 10; i++)
    if (i * i >= x) return i;
  return -1;
}
__kernel void k(__global int *y) {
  int i = get_global_id(0);
  y[i] = f(i * 15) + f(3);
}
