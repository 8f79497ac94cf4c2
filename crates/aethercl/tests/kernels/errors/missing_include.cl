#include "nothing_here.h"

kernel void k(global int *out) { out[0] = 1; }
