int number(void) { return; }
void nothing(void) { return 1; }
int2 pair(void) { return (int3)(1, 2, 3); }

kernel void k(global int *out) { out[0] = number(); }
