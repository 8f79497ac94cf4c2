/* A table of doubled values of floats with a sign, two exponent bits and one mantissa bit. For codes: these values plus ZERO, also as four
 * words. */
#ifdef READS_ELEMENTS
__constant float VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
#endif

#ifdef READS_CODES
#define SIGNED 0
#define ZERO 12
__constant uchar VALUE[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
#define FOUR_WORDS 0x0f0e0d0cu, 0x18141210u, 0x090a0b0cu, 0x00040608u
#endif
