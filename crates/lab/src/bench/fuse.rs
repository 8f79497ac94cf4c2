//! `netcl bench ops --op fuse`: kernels generated from expressions, compared with a copy of the same storage type and with torch.compile.

use super::{Bench, Line};
use netcl::prelude::*;
use netcl::tensor::array::Array;
use netcl::tensor::expr::{Expr, gradients, reference};
use netcl::tensor::{fuse, graph::Graph, unfused};
use serde_json::json;

type Tree = fn(&[Expr]) -> Result<Expr>;

/// Shape of an expression's input.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Input {
    /// (rows, cols).
    Whole,
    /// (cols).
    Row,
    /// (rows, 1).
    Column,
    /// (rows, cols) of 0 and 1, without a gradient.
    Mask,
}
use Input::{Column, Mask, Row, Whole};

/// Name, inputs, tree. `tools/peer.py` uses the same names.
const TREES: [(&str, &[Input], Tree); 12] = [
    ("chain_2", &[Whole, Row], |t| t[0].mul(&t[1])?.relu()),
    ("chain_6", &[Whole, Whole, Mask], |t| {
        let a = t[0].clamp(-0.5, 0.7)?.mul_scalar(1.5)?.add(&t[1].abs()?)?;
        t[2].where_cond(&a, &t[1])
    }),
    ("chain_12", &[Whole, Whole, Column], |t| {
        let a = t[0].mul(&t[2])?.add(&t[1])?.mul_scalar(0.5)?.maximum(&t[0])?;
        let b = a.square()?.add_scalar(1.0)?.sqrt()?;
        b.sub(&t[1])?.mul(&t[0])?.minimum(&t[2])?.abs()?.neg()
    }),
    ("gelu", &[Whole, Row], |t| {
        let x = t[0].add(&t[1])?;
        let u = x.add(&x.square()?.mul(&x)?.mul_scalar(0.044_715)?)?.mul_scalar(0.797_884_6)?;
        x.mul_scalar(0.5)?.mul(&u.tanh()?.add_scalar(1.0)?)
    }),
    ("swiglu", &[Whole, Whole], |t| t[0].mul(&t[0].sigmoid()?)?.mul(&t[1])),
    ("softmax", &[Whole], |t| t[0].softmax()),
    ("masked_softmax", &[Whole, Mask], |t| {
        t[1].where_cond(&t[0].mul_scalar(0.125)?, &t[0].number(-1e30))?.softmax()
    }),
    ("layer_norm", &[Whole, Row, Row], |t| {
        let d = t[0].sub(&t[0].mean(&[-1])?)?;
        d.mul(&d.square()?.mean(&[-1])?.add_scalar(1e-5)?.rsqrt()?)?.mul(&t[1])?.add(&t[2])
    }),
    ("rms_norm", &[Whole, Row], |t| {
        t[0].mul(&t[0].square()?.mean(&[-1])?.add_scalar(1e-5)?.rsqrt()?)?.mul(&t[1])
    }),
    ("variance", &[Whole], |t| t[0].variance(&[-1])),
    ("logsumexp", &[Whole], |t| {
        let top = t[0].max(&[-1])?.detach();
        t[0].sub(&top)?.exp()?.sum(&[-1])?.log()?.add(&top)
    }),
    ("l2_normalise", &[Whole], |t| t[0].mul(&t[0].square()?.sum(&[-1])?.add_scalar(1e-12)?.rsqrt()?)),
];

/// Timed rows and columns: 128 MiB in f32, which exceeds caches.
const SHAPE: [usize; 2] = [32_768, 1024];
/// Rows and columns that are compared with the tree in f64.
const REFERENCE_SHAPE: [usize; 2] = [37, 1024];

/// Returns the names of the expressions that a filter selects: all for `fuse`, one for `fuse:softmax`.
pub fn named(filter: Option<&str>) -> Vec<&'static str> {
    let means = |name: &str| match filter {
        None | Some("fuse") => true,
        Some(filter) => filter.strip_prefix("fuse:").is_some_and(|part| name.contains(part)),
    };
    TREES.iter().map(|(name, ..)| *name).filter(|name| means(name)).collect()
}

struct Case {
    name: &'static str,
    tree: Tree,
    inputs: Vec<Tensor>,
}

impl Case {
    fn new(device: &Device, dtype: DType, name: &str, [rows, cols]: [usize; 2]) -> Result<Self> {
        let Some((name, inputs, tree)) = TREES.iter().find(|tree| tree.0 == name) else {
            return Err(Error::internal(format!("bench ops: unknown expression {name}")));
        };
        let made = inputs.iter().enumerate().map(|(at, input)| {
            let (shape, count) = match input {
                Whole | Mask => (vec![rows, cols], rows * cols),
                Row => (vec![cols], cols),
                Column => (vec![rows, 1], rows),
            };
            let steps = |i: usize| (i * 37 + 11 * at) % 1009;
            if *input == Mask {
                let bits: Vec<u32> = (0..count).map(|i| u32::from(steps(i) % 3 > 0)).collect();
                return Tensor::from_u32(device, shape, &bits)?.to_dtype(DType::Bool);
            }
            let values: Vec<f32> = (0..count).map(|i| steps(i) as f32 / 400.0 - 1.2).collect();
            Tensor::from_f32(device, shape, &values, dtype)
        });
        Ok(Self { name, tree: *tree, inputs: made.collect::<Result<_>>()? })
    }
    fn given(&self) -> Vec<&Tensor> {
        self.inputs.iter().collect()
    }
    /// Returns the same inputs, with floats as parameters.
    fn parameters(&self) -> Vec<Tensor> {
        let parameter = |x: &Tensor| if x.dtype().is_float() { x.parameter("x") } else { x.clone() };
        self.inputs.iter().map(parameter).collect()
    }
    fn forward(&self) -> Result<Tensor> {
        no_grad(|| fuse(&self.given(), self.tree))
    }
}

/// Compares a small case with the tree in f64, and the gradients with a difference of values in their direction.
///
/// # Errors
/// `Internal` with the wrong value.
fn check(device: &Device, dtype: DType, name: &str) -> Result<()> {
    let case = Case::new(device, dtype, name, REFERENCE_SHAPE)?;
    let arrays = |inputs: &[Tensor]| -> Result<Vec<Array>> {
        let array = |x: &Tensor| -> Result<Array> {
            let wide = x.to_dtype(DType::F32)?.to_vec()?;
            Ok(Array::new(x.shape(), wide.into_iter().map(f64::from).collect()))
        };
        inputs.iter().map(array).collect()
    };
    let given = arrays(&case.inputs)?;
    let value = |given: &[Array]| reference(&given.iter().collect::<Vec<_>>(), case.tree);
    let (expected, y) = (value(&given)?, case.forward()?);
    let wrong = |what: &str| Error::internal(format!("bench ops: fuse:{name} is wrong: {what}"));
    let largest = expected.data.iter().fold(1e-3f64, |most, v| most.max(v.abs()));
    let allowed = (2e-5f64).max(2.0 * dtype.epsilon()) * largest;
    for (i, (got, expected)) in y.to_vec()?.iter().zip(&expected.data).enumerate() {
        let off = (f64::from(*got) - expected).abs();
        if off.is_nan() || off > allowed {
            return Err(wrong(&format!("element {i} is {got}, expected {expected}")));
        }
    }
    let parameters = case.parameters();
    let dy = Tensor::from_f32(device, y.shape(), &upstream(y.count()), dtype)?;
    let grads = gradients(&parameters.iter().collect::<Vec<_>>(), &dy, case.tree)?;
    let loss = |given: &[Array]| -> Result<f64> {
        let y = value(given)?;
        Ok(y.data
            .iter()
            .zip(upstream(y.data.len()))
            .map(|(y, dy)| y * f64::from(dtype.round(dy.into()) as f32))
            .sum())
    };
    for (at, grad) in grads.into_iter().enumerate() {
        let Some(grad) = grad else { continue };
        let grad = grad.to_vec()?;
        let length = grad.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        let moved = |by: f64| -> Result<f64> {
            let mut given = given.clone();
            given[at]
                .data
                .iter_mut()
                .zip(&grad)
                .for_each(|(x, g)| *x += by * f64::from(*g) / length.max(1e-30));
            loss(&given)
        };
        let slope = (moved(1e-4)? - moved(-1e-4)?) / 2e-4;
        let off = (slope - length).abs();
        if off.is_nan() || off > 0.02 * length.max(1e-3) {
            return Err(wrong(&format!("the gradient of input {at} has length {length}, expected {slope}")));
        }
    }
    Ok(())
}

/// Returns a gradient of the result, with both signs.
fn upstream(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i * 53 % 97) as f32 / 48.0 - 1.0).collect()
}

fn bytes<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> u64 {
    tensors.into_iter().map(|x| (x.count() * x.dtype().size()) as u64).sum()
}

/// Calls in a captured graph. Graphs are timed, because kernels take less time than a call that builds and differentiates a tree.
const CALLS: usize = 8;

/// Captures the calls of a graph for replay.
fn captured(device: &Device, mut call: impl FnMut() -> Result<()>) -> Result<Graph> {
    call()?;
    unfused(|| Graph::capture(device, || (0..CALLS).try_for_each(|_| call()))).map(|(graph, ())| graph)
}

/// Times the expressions of these names; shares are relative to the copy's bandwidth, timed in turn with each.
///
/// # Errors
/// Errors of the device; `Internal` for a kernel whose results are wrong.
pub fn run(bench: &mut Bench, names: &[&str]) -> Result<()> {
    let (device, dtype) = (bench.device.clone(), bench.dtype);
    super::fits(&device, "bench ops: fuse", &[&[8, SHAPE[0], SHAPE[1]]], dtype)?;
    for name in names {
        check(&device, dtype, name)?;
        let case = Case::new(&device, dtype, name, SHAPE)?;
        let parameters = case.parameters();
        let parameters: Vec<&Tensor> = parameters.iter().collect();
        let y = case.forward()?;
        let dy = Tensor::from_f32(&device, y.shape(), &upstream(y.count()), dtype)?;
        let grads = gradients(&parameters, &dy, case.tree)?;
        let passes = [
            ("fwd", bytes(&case.inputs) + bytes([&y])),
            ("bwd", bytes(&case.inputs) + bytes([&dy]) + bytes(grads.iter().flatten())),
        ];
        drop((y, grads));
        for (pass, bytes) in passes {
            let line = Line {
                op: format!("fuse:{}", case.name),
                shape: SHAPE.to_vec(),
                pass,
                bytes,
                ..Line::default()
            };
            let line = Line { checked: true, ..line };
            let request = json!({
                "op": "fuse", "of": case.name, "shape": SHAPE, "pass": pass, "dtype": bench.kind, "calls": CALLS
            });
            let run = captured(&device, || match pass {
                "fwd" => case.forward().map(drop),
                _ => gradients(&parameters, &dy, case.tree).map(drop),
            })?;
            let x = case.inputs[0].detach();
            let copy = captured(&device, || no_grad(|| x.mul_scalar(1.0)).map(drop))?;
            let moved = (2 * x.count() * dtype.size()) as u64;
            let (mut run, mut copy) = (|| run.replay(), || copy.replay());
            bench.compare_with_copy(line, Some(request), (&mut run, CALLS), (&mut copy, moved))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::tests;

    #[test]
    fn filters_name_all_one_or_none() {
        assert_eq!(named(None).len(), 12);
        assert_eq!(named(Some("fuse")).len(), 12);
        assert_eq!(named(Some("fuse:masked")), ["masked_softmax"]);
        assert!(named(Some("softmax")).is_empty());
    }

    #[test]
    fn expressions_and_gradients_are_right_and_a_wrong_kernel_is_found() {
        let healthy = tests::device(|text| text.to_owned());
        for name in named(None) {
            [DType::F32, DType::Bf16].into_iter().for_each(|dtype| check(&healthy, dtype, name).unwrap());
        }
        let broken = tests::device(|text| {
            text.replace(
                "#define ROW_SUM(scratch, site, v, rest) ",
                "#define ROW_SUM(scratch, site, v, rest) 0.5f * ",
            )
        });
        let message = check(&broken, DType::F32, "variance").unwrap_err().to_string();
        assert!(message.contains("fuse:variance is wrong: element"), "{message}");
    }
}
