/* The table of IQ4_NL and IQ4_XS: 16 approximate quantiles of a normal distribution, as signed bytes.
 *
 * READS_ELEMENTS  VALUES, the values as floats
 * READS_CODES     VALUE, the values plus 128 as bytes; FOUR_WORDS, the same bytes as four words; ZERO; SIGNED, whether codes are signed (DOT 3)
 *
 * sixteen.cl, which looks codes up, follows this file.
 */
#ifdef READS_ELEMENTS
__constant float VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
#endif

#ifdef READS_CODES
#define SIGNED (DOT == 3)
#if SIGNED
#define ZERO 0
#else
#define ZERO 128
#endif
__constant uchar VALUE[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
#define FOUR_WORDS 0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u
#endif
