//! The formats, one file each, with the layout of blocks, reading and writing, and the information for kernels. If kernels read a format, its
//! OpenCL source is in a file with the same name (`q4_0.cl`).

use super::format::Format;

/// Declares each file, re-exports its format and builds the table.
macro_rules! formats {
    ($($file:ident: $name:ident),+ $(,)?) => {
        $(mod $file; pub use $file::$name;)+

        /// Every format, ordered by its number in files.
        pub static FORMATS: [&Format; [$(stringify!($name)),+].len()] = [$(&$name),+];
    };
}

formats! {
    f32: F32,
    f16: F16,
    q4_0: Q4_0,
    q4_1: Q4_1,
    q5_0: Q5_0,
    q5_1: Q5_1,
    q8_0: Q8_0,
    q8_1: Q8_1,
    q2_k: Q2_K,
    q3_k: Q3_K,
    q4_k: Q4_K,
    q5_k: Q5_K,
    q6_k: Q6_K,
    q8_k: Q8_K,
    iq2_xxs: IQ2_XXS,
    iq2_xs: IQ2_XS,
    iq3_xxs: IQ3_XXS,
    iq1_s: IQ1_S,
    iq4_nl: IQ4_NL,
    iq3_s: IQ3_S,
    iq2_s: IQ2_S,
    iq4_xs: IQ4_XS,
    i8: I8,
    i16: I16,
    i32: I32,
    i64: I64,
    f64: F64,
    iq1_m: IQ1_M,
    bf16: BF16,
    tq1_0: TQ1_0,
    tq2_0: TQ2_0,
    mxfp4: MXFP4,
    nvfp4: NVFP4,
    q1_0: Q1_0,
    q2_0: Q2_0,
}
