//! Generates element-wise kernels from expressions: the defines of `elementwise.cl` for one combination of inputs.

mod typed;

pub use typed::{TYPED, TypedSpec, typed_defines};

use crate::define::{Text, Value};
use crate::dtype::DType;
use crate::kernel::Kernel;
use std::fmt::Write as _;

/// Functions that expressions use, for kernels that accept expressions.
pub const FUNCTIONS: &str = crate::cl_file!("functions.cl");

/// The source of every element-wise kernel. `WG` only matters on GPUs.
pub static ELEMENTWISE: Kernel = Kernel::new("elementwise", crate::cl_file!("elementwise.cl"))
    .include(&[crate::cl_file!("functions.cl")])
    .tune(&[("WG", &[256, 128, 512]), ("VW", &[4, 1, 2, 8])])
    .tune_cpu(&[("VW", &[0, 16])]);

/// The source around kernels generated from trees of expressions; the define `TEXT` is the kernel. Its parameters are tuned per class of shapes and
/// trees:
/// - `WG` for kernels without row reductions.
/// - `SHARE` vectors of a row per work-item for kernels with row reductions: twice as many for a single tensor, half as many together with column
///   sums.
/// - `SPAN` bytes per vector if operands are aligned to it, or `VW` lanes otherwise.
pub static FUSED: Kernel = Kernel::new("fused", crate::cl_file!("fused.cl"))
    .include(&[crate::cl_file!("functions.cl")])
    .tune(&[("WG", &[256, 128, 512]), ("VW", &[4, 1, 2, 8]), ("SPAN", &[16, 8, 32]), ("SHARE", &[4, 2, 8])])
    .tune_cpu(&[("VW", &[0, 16])]);

/// Stride of an input along the innermost axis of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// One value for the whole row.
    Zero,
    /// Adjacent elements are adjacent in memory.
    Unit,
    /// Adjacent elements are a stride apart; the stride is an argument.
    Strided,
}

/// One input of an element-wise kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Input {
    /// Storage type.
    pub dtype: DType,
    /// Stride along the innermost axis.
    pub step: Step,
}

/// Specification of a generated kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// Expression in `x0`, `x1`, … and `s0`, `s1`, …
    pub expression: String,
    /// Inputs, in order.
    pub inputs: Vec<Input>,
    /// Scalar arguments.
    pub scalars: usize,
    /// Storage type of the output.
    pub output: DType,
    /// `None`: every input is contiguous or one value. `Some(d)`: rows of a shape with `d` outer dimensions.
    pub outer: Option<usize>,
    /// Each work-item owns a contiguous range (CPUs).
    pub chunked: bool,
    /// Without outer dimensions: whether every operand's offset is a multiple of the vector length, in elements.
    pub aligned: bool,
}

/// Returns the defines that turn `elementwise.cl` into this kernel. The kernel's arguments are:
/// - for each input, pointer and element offset;
/// - the scalars;
/// - with outer dimensions, their sizes, then for each input its outer strides and, if strided, its row stride;
/// - the output, its element offset, and `n`, or `rows` and `inner`.
pub fn defines(spec: &Spec) -> Vec<(&'static str, Value)> {
    let mut params = String::new();
    let mut sizes = String::new();
    let mut offsets = String::new();
    let (mut loads, mut loads1) = (String::new(), String::new());
    for (i, input) in spec.inputs.iter().enumerate() {
        let (code, base) = (input.dtype.code(), if spec.outer.is_some() { "a" } else { "o" });
        // Writing to a String cannot fail.
        let _ = write!(params, "__global const {} *p{i}, ulong o{i}, ", input.dtype.c_type());
        let vector = match input.step {
            Step::Unit => format!("FV x{i} = IN_V{code}(p{i} + {base}{i}, i); "),
            Step::Zero => format!("FV x{i} = (FV)(IN_1{code}(p{i} + {base}{i}, 0)); "),
            Step::Strided => format!("LANES(x{i}, IN_1{code}(p{i} + {base}{i}, (i + k) * r{i})) "),
        };
        loads.push_str(&vector);
        loads1.push_str(&match input.step {
            Step::Unit => format!("LANES(x{i}, IN_1{code}(p{i} + {base}{i}, i + k)) "),
            Step::Zero | Step::Strided => vector.clone(),
        });
    }
    for s in 0..spec.scalars {
        let _ = write!(params, "float s{s}, ");
    }
    if let Some(outer) = spec.outer {
        row_arithmetic(spec, outer, &mut sizes, &mut offsets);
    }
    let text = |t: &str| Value::Text(Text::new(t));
    let mut out = vec![
        ("FLAT", Value::from(spec.outer.is_none())),
        ("CHUNKED", Value::from(spec.chunked)),
        ("ALIGNED_VECTORS", Value::from(spec.aligned)),
        ("OUT", Value::Int(spec.output.code())),
        ("EXPR", text(&spec.expression)),
        ("PARAMS", text(&params)),
        ("LOADS", text(&loads)),
        ("LOADS1", text(&loads1)),
    ];
    if spec.outer.is_some() {
        out.push(("SIZES", text(&sizes)));
        out.push(("ROW_OFFSETS", text(&offsets)));
    }
    out
}

/// Writes the parameters and code that split a row number, last outer dimension first.
fn row_arithmetic(spec: &Spec, outer: usize, sizes: &mut String, offsets: &mut String) {
    for d in 0..outer {
        let _ = write!(sizes, "ulong d{d}, ");
    }
    for (i, input) in spec.inputs.iter().enumerate() {
        for d in 0..outer {
            let _ = write!(sizes, "ulong t{i}_{d}, ");
        }
        if input.step == Step::Strided {
            let _ = write!(sizes, "ulong r{i}, ");
        }
        let _ = write!(offsets, "ulong a{i} = o{i}; ");
    }
    offsets.push_str("ulong q = row; ");
    for d in (0..outer).rev() {
        let _ = write!(offsets, "{{ const ulong c = q % d{d}; q /= d{d}; ");
        for i in 0..spec.inputs.len() {
            let _ = write!(offsets, "a{i} += c * t{i}_{d}; ");
        }
        offsets.push_str("} ");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::assemble;

    #[test]
    fn a_spec_names_every_argument_once() {
        let spec = Spec {
            expression: "x0 + s0 * x1".into(),
            inputs: vec![
                Input { dtype: DType::F32, step: Step::Unit },
                Input { dtype: DType::Bf16, step: Step::Strided },
            ],
            scalars: 1,
            output: DType::F16,
            outer: Some(2),
            chunked: false,
            aligned: false,
        };
        let source = assemble(&ELEMENTWISE, &defines(&spec));
        for part in [
            "__global const float *p0",
            "__global const ushort *p1",
            "float s0",
            "ulong t1_1",
            "ulong r1",
            "#define EXPR x0 + s0 * x1",
        ] {
            let made = &source[..source.find("#line").unwrap()];
            assert_eq!(made.matches(part).count(), 1, "{part}");
        }
    }
}
