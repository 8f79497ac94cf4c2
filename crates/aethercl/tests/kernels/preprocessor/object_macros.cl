#define ONE 1
#define TWO (ONE + ONE)
#define EMPTY
#define LATE LATER
#define LATER 5
#define SELF SELF + 1
#define SELF_VALUE 1

kernel void object_macros(global int *out) {
  int SELF_ = 3;
  out[0] = TWO * TWO;
  out[1] = EMPTY 4 EMPTY;
  out[2] = LATE;
#undef LATER
#define LATER 6
  out[3] = LATE;
#undef TWO
#ifdef TWO
  out[4] = 1;
#else
  out[4] = 2;
#endif
}
