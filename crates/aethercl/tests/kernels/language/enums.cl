enum color { RED, GREEN = 5, BLUE };
typedef enum { SMALL = -1, LARGE = 1 << 10 } size;

kernel void enums(global int *out) {
  enum color c = BLUE;
  size s = SMALL;
  out[0] = RED + GREEN + c;
  out[1] = s;
  out[2] = LARGE;
  enum { HERE = LARGE / 2 };
  int a[GREEN] = {0};
  out[3] = HERE + sizeof(a);
}
