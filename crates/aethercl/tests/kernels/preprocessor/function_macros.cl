#define ADD(a, b) ((a) + (b))
#define TWICE(x) ADD(x, x)
#define NOTHING() 7
#define FIRST(a, ...) (a)
#define CALL(f, ...) f(__VA_ARGS__)
#define ID(x) x
#define f(x) (x * 10)

kernel void function_macros(global int *out) {
  out[0] = TWICE(ADD(1, 2));
  out[1] = NOTHING();
  out[2] = FIRST(3, 4, 5);
  out[3] = CALL(ADD, 4, (5, 6));
  out[4] = ID(ADD)(1, 1);
  out[5] = f(f(2));
  int f = 9; /* without parentheses it is a name */
  out[6] = f;
  out[7] = ADD(
      1,
      2);
}
