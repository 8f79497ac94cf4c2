#define A 3
#define F(x) ((x) > 2)

kernel void conditionals(global int *out) {
#if A == 3 && defined(A) && !defined B
  out[0] = 1;
#endif
#if F(A)
  out[1] = 1;
#else
  out[1] = 2;
#endif
#if A > 3
  out[2] = 1;
#elif A > 2
  out[2] = 2;
#elif 1 / 0
  out[2] = 3;
#else
  out[2] = 4;
#endif
#if 0
  this is 'not read "at all
#if 1
  out[3] = 1;
#endif
#else
  out[3] = 2;
#endif
#ifndef UNKNOWN
#if UNKNOWN
  out[4] = 1;
#else
  out[4] = 2;
#endif
#endif
#if (1 ? 2 : 3) == 2 && -1 < 0 && (2 || 1 / 0) && 0x10 == 16 && 'a' == 97 && ~0 == -1
  out[5] = 1;
#endif
#if -1 > 0u
  out[6] = 1;
#endif
}
