#define LONG(a, b) \
  ((a) * \
   (b))
// a comment that goes on \
   this is still comment
kernel void line_splices(global int *out) {
  int spl\
it = 6;
  out[0] = LONG(split, 7); /* and
  here */ out[1] = 3 /**/ + /* */ 4;
  out[2] = sizeof("a\
b");
}
