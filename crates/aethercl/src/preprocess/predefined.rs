//! Macros that exist before the first line: those of the language, the device and the build options.

use std::fmt::Write;

use crate::options::{BuildOptions, Target};

/// Limits, mathematical constants, fences: sections 6.12 and 6.13.2 of OpenCL C 1.2, and the names of 2.0.
const LANGUAGE: &str = "\
#define CHAR_BIT 8
#define SCHAR_MAX 127
#define SCHAR_MIN (-127 - 1)
#define CHAR_MAX SCHAR_MAX
#define CHAR_MIN SCHAR_MIN
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define SHRT_MIN (-32767 - 1)
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 0xffffffffU
#define LONG_MAX 0x7fffffffffffffffL
#define LONG_MIN (-0x7fffffffffffffffL - 1L)
#define ULONG_MAX 0xffffffffffffffffUL
#define FLT_DIG 6
#define FLT_MANT_DIG 24
#define FLT_MAX_10_EXP +38
#define FLT_MAX_EXP +128
#define FLT_MIN_10_EXP -37
#define FLT_MIN_EXP -125
#define FLT_RADIX 2
#define FLT_MAX 0x1.fffffep127f
#define FLT_MIN 0x1.0p-126f
#define FLT_EPSILON 0x1.0p-23f
#define FP_ILOGB0 (-2147483647 - 1)
#define FP_ILOGBNAN 2147483647
#define MAXFLOAT FLT_MAX
#define HUGE_VALF (__builtin_inff())
#define HUGE_VAL (__builtin_inf())
#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(\"\"))
#define M_E_F 2.71828182845904523536028747135266250f
#define M_LOG2E_F 1.44269504088896340735992468100189214f
#define M_LOG10E_F 0.434294481903251827651128918916605082f
#define M_LN2_F 0.693147180559945309417232121458176568f
#define M_LN10_F 2.30258509299404568401799145468436421f
#define M_PI_F 3.14159265358979323846264338327950288f
#define M_PI_2_F 1.57079632679489661923132169163975144f
#define M_PI_4_F 0.785398163397448309615660845819875721f
#define M_1_PI_F 0.318309886183790671537767526745028724f
#define M_2_PI_F 0.636619772367581343075535053490057448f
#define M_2_SQRTPI_F 1.12837916709551257389615890312154517f
#define M_SQRT2_F 1.41421356237309504880168872420969808f
#define M_SQRT1_2_F 0.707106781186547524400844362104849039f
#define CLK_LOCAL_MEM_FENCE 1
#define CLK_GLOBAL_MEM_FENCE 2
#define CLK_IMAGE_MEM_FENCE 4
#define __IMAGE_SUPPORT__ 1
#define CLK_NORMALIZED_COORDS_FALSE 0
#define CLK_NORMALIZED_COORDS_TRUE 1
#define CLK_ADDRESS_NONE 0
#define CLK_ADDRESS_CLAMP_TO_EDGE 2
#define CLK_ADDRESS_CLAMP 4
#define CLK_ADDRESS_REPEAT 6
#define CLK_ADDRESS_MIRRORED_REPEAT 8
#define CLK_FILTER_NEAREST 0x10
#define CLK_FILTER_LINEAR 0x20
#define CLK_R 0x10B0
#define CLK_A 0x10B1
#define CLK_RG 0x10B2
#define CLK_RA 0x10B3
#define CLK_RGB 0x10B4
#define CLK_RGBA 0x10B5
#define CLK_BGRA 0x10B6
#define CLK_ARGB 0x10B7
#define CLK_INTENSITY 0x10B8
#define CLK_LUMINANCE 0x10B9
#define CLK_Rx 0x10BA
#define CLK_RGx 0x10BB
#define CLK_RGBx 0x10BC
#define CLK_DEPTH 0x10BD
#define CLK_sRGB 0x10BF
#define CLK_sRGBx 0x10C0
#define CLK_sRGBA 0x10C1
#define CLK_sBGRA 0x10C2
#define CLK_ABGR 0x10C3
#define CLK_SNORM_INT8 0x10D0
#define CLK_SNORM_INT16 0x10D1
#define CLK_UNORM_INT8 0x10D2
#define CLK_UNORM_INT16 0x10D3
#define CLK_UNORM_SHORT_565 0x10D4
#define CLK_UNORM_SHORT_555 0x10D5
#define CLK_UNORM_INT_101010 0x10D6
#define CLK_SIGNED_INT8 0x10D7
#define CLK_SIGNED_INT16 0x10D8
#define CLK_SIGNED_INT32 0x10D9
#define CLK_UNSIGNED_INT8 0x10DA
#define CLK_UNSIGNED_INT16 0x10DB
#define CLK_UNSIGNED_INT32 0x10DC
#define CLK_HALF_FLOAT 0x10DD
#define CLK_FLOAT 0x10DE
#define CLK_UNORM_INT24 0x10DF
#define NULL ((void *)0)
#define ATOMIC_VAR_INIT(value) (value)
#define ATOMIC_FLAG_INIT 0
#define __ENDIAN_LITTLE__ 1
#define __OPENCL_VERSION__ 300
#define CL_VERSION_1_0 100
#define CL_VERSION_1_1 110
#define CL_VERSION_1_2 120
#define CL_VERSION_2_0 200
#define CL_VERSION_3_0 300
#define __kernel_exec(X, typen) __kernel __attribute__((work_group_size_hint(X, 1, 1))) __attribute__((vec_type_hint(typen)))
#define kernel_exec(X, typen) __kernel_exec(X, typen)
#define __AETHERCL__ 1
";

/// Where `double` exists.
const DOUBLE: &str = "\
#define DBL_DIG 15
#define DBL_MANT_DIG 53
#define DBL_MAX_10_EXP +308
#define DBL_MAX_EXP +1024
#define DBL_MIN_10_EXP -307
#define DBL_MIN_EXP -1021
#define DBL_RADIX 2
#define DBL_MAX 0x1.fffffffffffffp1023
#define DBL_MIN 0x1.0p-1022
#define DBL_EPSILON 0x1.0p-52
#define M_E 2.71828182845904523536028747135266250
#define M_LOG2E 1.44269504088896340735992468100189214
#define M_LOG10E 0.434294481903251827651128918916605082
#define M_LN2 0.693147180559945309417232121458176568
#define M_LN10 2.30258509299404568401799145468436421
#define M_PI 3.14159265358979323846264338327950288
#define M_PI_2 1.57079632679489661923132169163975144
#define M_PI_4 0.785398163397448309615660845819875721
#define M_1_PI 0.318309886183790671537767526745028724
#define M_2_PI 0.636619772367581343075535053490057448
#define M_2_SQRTPI 1.12837916709551257389615890312154517
#define M_SQRT2 1.41421356237309504880168872420969808
#define M_SQRT1_2 0.707106781186547524400844362104849039
";

/// Macros for `half` arithmetic.
const HALF: &str = "\
#define HALF_DIG 3
#define HALF_MANT_DIG 11
#define HALF_MAX_10_EXP +4
#define HALF_MAX_EXP +16
#define HALF_MIN_10_EXP -4
#define HALF_MIN_EXP -13
#define HALF_RADIX 2
#define HALF_MAX 0x1.ffcp15h
#define HALF_MIN 0x1.0p-14h
#define HALF_EPSILON 0x1.0p-10h
#define M_E_H 2.71828182845904523536028747135266250h
#define M_LOG2E_H 1.44269504088896340735992468100189214h
#define M_LOG10E_H 0.434294481903251827651128918916605082h
#define M_LN2_H 0.693147180559945309417232121458176568h
#define M_LN10_H 2.30258509299404568401799145468436421h
#define M_PI_H 3.14159265358979323846264338327950288h
#define M_PI_2_H 1.57079632679489661923132169163975144h
#define M_PI_4_H 0.785398163397448309615660845819875721h
#define M_1_PI_H 0.318309886183790671537767526745028724h
#define M_2_PI_H 0.636619772367581343075535053490057448h
#define M_2_SQRTPI_H 1.12837916709551257389615890312154517h
#define M_SQRT2_H 1.41421356237309504880168872420969808h
#define M_SQRT1_2_H 0.707106781186547524400844362104849039h
";

/// Feature macros of OpenCL C 3.0 that this device has.
const FEATURES: &str = "\
#define __opencl_c_int64 1
#define __opencl_c_generic_address_space 1
#define __opencl_c_images 1
#define __opencl_c_read_write_images 1
#define __opencl_c_3d_image_writes 1
#define __opencl_c_atomic_order_acq_rel 1
#define __opencl_c_atomic_order_seq_cst 1
#define __opencl_c_atomic_scope_device 1
#define __opencl_c_program_scope_global_variables 1
#define __opencl_c_work_group_collective_functions 1
";

/// Returns the source of all of them.
pub(super) fn text(options: &BuildOptions, target: &Target) -> String {
    let mut out = String::from(LANGUAGE);
    let has = |name: &str| target.extensions.iter().any(|e| e == name);
    if has("cl_khr_fp64") {
        out.push_str(DOUBLE);
    }
    if has("cl_khr_fp16") {
        out.push_str(HALF);
    }
    for name in &target.extensions {
        _ = writeln!(out, "#define {name} 1");
    }
    let version = options.version;
    _ = writeln!(out, "#define __OPENCL_C_VERSION__ {version}");
    if version >= 300 {
        out.push_str(FEATURES);
        if has("cl_khr_fp64") {
            out.push_str("#define __opencl_c_fp64 1\n");
        }
        if has("cl_khr_subgroups") {
            out.push_str("#define __opencl_c_subgroups 1\n");
        }
    }
    if options.fast_relaxed_math {
        out.push_str("#define __FAST_RELAXED_MATH__ 1\n");
    }
    out
}

/// Returns true if a built-in function is one of [`functions`].
pub(super) fn is_written(name: &str) -> bool {
    name.starts_with("dot_4x8packed_") || name.starts_with("dot_acc_sat_4x8packed_")
}

/// Returns products of four bytes in a word, from `cl_khr_integer_dot_product`.
pub(super) fn functions() -> String {
    let mut out = String::new();
    for (name, a, b, sum) in [
        ("ss_int", "char4", "char4", "int"),
        ("uu_uint", "uchar4", "uchar4", "uint"),
        ("su_int", "char4", "uchar4", "int"),
        ("us_int", "uchar4", "char4", "int"),
    ] {
        let part = |i: u32| format!("({sum})__x.s{i} * ({sum})__y.s{i}");
        let parts: Vec<String> = (0..4).map(part).collect();
        let parts = parts.join(" + ");
        let _ = writeln!(
            out,
            "{sum} dot_4x8packed_{name}(uint __a, uint __b) {{ {a} __x = as_{a}(__a); {b} __y = as_{b}(__b); return {parts}; }}"
        );
        let _ = writeln!(
            out,
            "{sum} dot_acc_sat_4x8packed_{name}(uint __a, uint __b, {sum} __c) {{ return add_sat(dot_4x8packed_{name}(__a, __b), __c); }}"
        );
    }
    out
}
