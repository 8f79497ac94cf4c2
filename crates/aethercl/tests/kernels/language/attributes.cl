#define INLINE __attribute__((always_inline)) static inline

INLINE int twice(int x) { return 2 * x; }

kernel __attribute__((reqd_work_group_size(2, 1, 1))) __attribute__((vec_type_hint(float4)))
void attributes(global int *out) {
  int a[4] __attribute__((aligned(64))) = {1, 2, 3, 4};
  int sum = 0;
  __attribute__((opencl_unroll_hint(2)))
  for (int i = 0; i < 4; i++) sum += twice(a[i]);
#pragma unroll
  for (int i = 0; i < 2; i++) sum++;
  _Pragma("unroll 4") for (int i = 0; i < 2; i++) sum++;
  out[get_global_id(0)] = sum;
}
