enum { A = 1, B = 0xffffffffffffffff, C };
enum { D = 1.5f };

kernel void k(global int *out) { out[0] = A; }
