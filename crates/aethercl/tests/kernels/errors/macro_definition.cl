#define
#define 3 4
#define F(a, a) a
#define G(a) #b
#define H(a) ## a
#define I(a

kernel void k(global int *out) { out[0] = 1; }
