//! Generates element-wise kernels that compute in each operand's own type: the defines of `typed.cl` for one combination of operands.
//!
//! Integers and masks have neither gradients nor an f64 reference; they are exact. In a kernel with a mask, the float operands determine the number
//! of vector lanes.

use crate::define::{Text, Value};
use crate::dtype::DType;
use crate::kernel::Kernel;
use std::fmt::Write as _;

/// The source of these kernels.
pub static TYPED: Kernel =
    Kernel::new("typed", crate::cl_file!("typed.cl")).tune(&[("WG", &[256])]).tune_cpu(&[("WG", &[1])]);

/// Specification of a kernel.
#[derive(Clone, Debug)]
pub struct TypedSpec<'a> {
    /// Expression in `x0`, `x1`, … and `s0`, `s1`, …, in OpenCL C.
    pub expression: &'a str,
    /// Storage types of the inputs and, for flat operands, whether each is a single value.
    pub inputs: &'a [(DType, bool)],
    /// Types of the scalars in OpenCL C: `long` or `float`.
    pub scalars: &'a [&'static str],
    /// Storage type of the output.
    pub output: DType,
    /// `None`: every operand has the layout of the result, or is one value. `Some(d)`: `d` axes; each operand has separate strides.
    pub axes: Option<usize>,
}

/// Returns the defines that turn `typed.cl` into this kernel. The kernel's arguments are:
/// - for each input, pointer and element offset;
/// - the scalars;
/// - with axes, their sizes, then the strides of each input and of the output;
/// - the output, its element offset and the number of elements.
pub fn typed_defines(spec: &TypedSpec<'_>) -> Vec<(&'static str, Value)> {
    let mut params = String::new();
    let mut sizes = String::new();
    let mut loads = String::new();
    for (i, (dtype, _)) in spec.inputs.iter().enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(params, "__global const {} *p{i}, ulong o{i}, ", dtype.c_type());
        let load = match dtype {
            DType::F32 => format!("const float x{i} = p{i}[a{i}]; "),
            DType::F16 => format!("const float x{i} = vload_half(a{i}, p{i}); "),
            DType::Bf16 => format!("const float x{i} = of_bf16(p{i}[a{i}]); "),
            DType::I32 => format!("const int x{i} = p{i}[a{i}]; "),
            DType::U32 => format!("const uint x{i} = p{i}[a{i}]; "),
            DType::Bool => format!("const int x{i} = p{i}[a{i}] != 0; "),
        };
        loads.push_str(&load);
    }
    for (i, kind) in spec.scalars.iter().enumerate() {
        let _ = write!(params, "{kind} s{i}, ");
    }
    let names: Vec<String> = (0..spec.inputs.len()).map(|i| i.to_string()).chain(["y".into()]).collect();
    if let Some(axes) = spec.axes {
        (0..axes).for_each(|d| sizes.push_str(&format!("ulong d{d}, ")));
        names.iter().for_each(|name| (0..axes).for_each(|d| sizes.push_str(&format!("ulong t{name}_{d}, "))));
    }
    let text = |t: &str| Value::Text(Text::new(t));
    vec![
        ("OUT", Value::Int(spec.output.code())),
        ("EXPR", text(spec.expression)),
        ("PARAMS", text(&params)),
        ("SIZES", text(&sizes)),
        ("PLACES", text(&places(spec, &names))),
        ("LOADS", text(&loads)),
    ]
}

/// Returns code that computes the positions of the operands of element `k`.
fn places(spec: &TypedSpec<'_>, names: &[String]) -> String {
    let mut out = String::new();
    let Some(axes) = spec.axes else {
        for (name, one) in names.iter().zip(spec.inputs.iter().map(|(_, one)| *one).chain([false])) {
            let _ = write!(out, "const ulong a{name} = o{name}{}; ", if one { "" } else { " + k" });
        }
        return out;
    };
    names.iter().for_each(|name| out.push_str(&format!("ulong a{name} = o{name}; ")));
    out.push_str("ulong q = k; ");
    for d in (0..axes).rev() {
        let _ = write!(out, "{{ const ulong c = q % d{d}; q /= d{d}; ");
        names.iter().for_each(|name| out.push_str(&format!("a{name} += c * t{name}_{d}; ")));
        out.push_str("} ");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::assemble;

    #[test]
    fn a_spec_names_every_argument_once() {
        let inputs = [(DType::I32, false), (DType::Bool, true)];
        let spec = TypedSpec {
            expression: "x1 ? x0 : s0",
            inputs: &inputs,
            scalars: &["long"],
            output: DType::I32,
            axes: Some(2),
        };
        let source = assemble(&TYPED, &typed_defines(&spec));
        let made = &source[..source.find("#line").unwrap()];
        for part in [
            "__global const int *p0",
            "__global const uchar *p1",
            "long s0",
            "ulong t1_1",
            "ulong ty_0",
            "#define OUT 3",
        ] {
            assert_eq!(made.matches(part).count(), 1, "{part}");
        }
    }
}
