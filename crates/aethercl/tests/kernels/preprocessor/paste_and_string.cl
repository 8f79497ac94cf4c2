#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
#define WIDTH 4
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

constant char plain[] = TEXT_(WIDTH);
constant char expanded[] = TEXT(WIDTH);
constant char quoted[] = TEXT_("a" 'b'  + c);

kernel void paste_and_string(global int *out) {
  CAT(int, WIDTH) v = (CAT_(int, 4))(1, 2, 3, 4);
  out[0] = v.w;
  out[1] = CAT(1, CAT(2, 3));
  out[2] = sizeof(plain);
  out[3] = sizeof(expanded);
  out[4] = sizeof(quoted);
  out[5] = CAT_(, 5) + CAT_(6, );
}
