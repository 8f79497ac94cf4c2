// Helpers of the C tests: a check that prints the location of a failure, and a deterministic pseudorandom generator.
#ifndef CHECK_H
#define CHECK_H

#include <aethercl.h>
#include <math.h>
#include <netcl.h>
#include <netcl_driver.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

#define CHECK(what)                                                                              \
  do {                                                                                           \
    if (!(what)) {                                                                               \
      failures++;                                                                                \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, netcl_last_error());         \
    }                                                                                            \
  } while (0)

static unsigned long long state = 1;

static inline unsigned long long random_word(void) {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return state >> 11;
}

// Returns a number between -1 and 1.
static inline float random_float(void) { return (float)((double)(random_word() & 0xffffff) / 8388608.0 - 1.0); }

static inline int finish(const char *name) {
  printf("%s: %s\n", name, failures ? "FAILED" : "ok");
  return failures != 0;
}

#endif
