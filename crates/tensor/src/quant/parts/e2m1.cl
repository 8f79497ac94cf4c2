/* The table of E2M1: twice the values of the 16 numbers with a sign bit, two exponent bits and one mantissa bit.
 *
 * READS_ELEMENTS  VALUES, the values as floats
 * READS_CODES     VALUE, the values plus ZERO as bytes; FOUR_WORDS, the same bytes as four words; ZERO; SIGNED 0
 *
 * sixteen.cl, which looks codes up, follows this file.
 */
#ifdef READS_ELEMENTS
__constant float VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
#endif

#ifdef READS_CODES
#define SIGNED 0
#define ZERO 12
__constant uchar VALUE[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
#define FOUR_WORDS 0x0f0e0d0cu, 0x18141210u, 0x090a0b0cu, 0x00040608u
#endif
