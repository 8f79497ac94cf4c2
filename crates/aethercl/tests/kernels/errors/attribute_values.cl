kernel __attribute__((reqd_work_group_size(8, 1))) void a(global int *out) {}
kernel __attribute__((reqd_work_group_size(8, 0, 1))) void b(global int *out) {}
typedef float F __attribute__((aligned(3)));
