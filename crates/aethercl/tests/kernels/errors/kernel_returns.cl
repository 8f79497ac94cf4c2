kernel int k(global int *out) { return 1; }
