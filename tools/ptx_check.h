/* Replacements for the functions of OpenCL C's library that a driver provides, for tools/ptx_check.sh. */
#define asm __asm__
#define get_local_id(d) ((size_t)__nvvm_read_ptx_sreg_tid_x())
#define get_group_id(d) ((size_t)((d) == 0 ? __nvvm_read_ptx_sreg_ctaid_x() : (d) == 1 ? __nvvm_read_ptx_sreg_ctaid_y() : __nvvm_read_ptx_sreg_ctaid_z()))
#define get_num_groups(d) ((size_t)((d) == 0 ? __nvvm_read_ptx_sreg_nctaid_x() : __nvvm_read_ptx_sreg_nctaid_y()))
#define get_local_size(d) ((size_t)__nvvm_read_ptx_sreg_ntid_x())
#define get_global_id(d) (get_group_id(d) * get_local_size(d) + get_local_id(d))
#define get_global_size(d) (get_num_groups(d) * get_local_size(d))
#define barrier(x) __syncthreads()
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define log2(x) __nvvm_lg2_approx_f(x)
#define mul_hi(a, b) ((uint)(((ulong)(a) * (ulong)(b)) >> 32))
#define isnan(x) __builtin_isnan(x)
#define isfinite(x) __builtin_isfinite(x)
#define exp2(x) __nvvm_ex2_approx_f(x)
#define rsqrt(x) __nvvm_rsqrt_approx_f(x)
#define tanh(x) (1.0f - 2.0f / (1.0f + __nvvm_ex2_approx_f((x) * 2.88539f)))
#define dot(a, b) ((a).x * (b).x + (a).y * (b).y + (a).z * (b).z + (a).w * (b).w)
#define convert_int4_rte(v) ((int4)(__nvvm_f2i_rn((v).x), __nvvm_f2i_rn((v).y), __nvvm_f2i_rn((v).z), __nvvm_f2i_rn((v).w)))
#define fabs(x) __builtin_fabsf(x)
/* Functions of scalars and of vectors of four. */
#define ANY static inline __attribute__((overloadable))
#define OF_FOUR(f, x) ((float4)(f((x).x), f((x).y), f((x).z), f((x).w)))
ANY float fma_(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
ANY float4 fma_(float4 a, float4 b, float4 c) {
  return (float4)(fma_(a.x, b.x, c.x), fma_(a.y, b.y, c.y), fma_(a.z, b.z, c.z), fma_(a.w, b.w, c.w));
}
ANY float fmax_(float a, float b) { return __builtin_fmaxf(a, b); }
ANY float4 fmax_(float4 a, float4 b) { return (float4)(fmax_(a.x, b.x), fmax_(a.y, b.y), fmax_(a.z, b.z), fmax_(a.w, b.w)); }
ANY float exp_(float x) { return __nvvm_ex2_approx_f(x * 1.44269504f); }
ANY float4 exp_(float4 x) { return OF_FOUR(exp_, x); }
ANY float exp2_(float x) { return __nvvm_ex2_approx_f(x); }
ANY float4 exp2_(float4 x) { return OF_FOUR(exp2_, x); }
#define native_exp2 exp2_
#define convert_uint4(v) ((uint4)((v).x, (v).y, (v).z, (v).w))
#define fma fma_
#define fmax fmax_
#define exp exp_
/* Access to halves in device memory. */
static inline float half_at_(__global const ushort *p) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(*p));
  return r;
}
static inline void store_half_(__global ushort *p, float v) {
  ushort h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
  *p = h;
}
#define vload_half(i, p) half_at_((__global const ushort *)(p) + (i))
#define vstore_half_rte(v, i, p) store_half_((__global ushort *)(p) + (i), v)
#define vloada_half4(i, p) \
  ((float4)(vload_half(4 * (i), p), vload_half(4 * (i) + 1, p), vload_half(4 * (i) + 2, p), vload_half(4 * (i) + 3, p)))
