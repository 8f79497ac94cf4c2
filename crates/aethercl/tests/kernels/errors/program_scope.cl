int counter = 0;
constant int missing;
constant int fine = 1;
constant int computed = fine + get_global_id(0);

kernel void k(global int *out) { out[0] = fine; }
