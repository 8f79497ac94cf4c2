/* GNU's comma is dropped if nothing follows it. */
int one(int a) { return a; }
int three(int a, int b, int c) { return a + b * 10 + c * 100; }
#define CALL(f, a, ...) f(a, ##__VA_ARGS__)
#define LIST(...) {__VA_ARGS__}
#define NAMED(first, rest...) three(first, rest)

kernel void variadic(global int *out) {
  out[0] = CALL(one, 5);
  out[1] = CALL(three, 1, 2, 3);
  int a[] = LIST(1, 2, 3);
  out[2] = sizeof(a) / sizeof(int);
  out[3] = NAMED(3, 2, 1);
}
