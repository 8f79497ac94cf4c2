float elsewhere(float x);

kernel void k(global float *out) { out[0] = elsewhere(1.0f); }
