#include "scale.h"
#include "scale.h"

kernel void include(global int *out) { out[0] = scaled(7) + SCALE_TWICE; }
