//! Trees in f64 on the host, node by node: what kernels are compared with.

use super::node::{Kind, Nodes, Reduction, binary_of, unary_of};
use crate::array::{Array, unravel};
use crate::ops::mask::COMPARISONS;
use crate::{DType, Shape};

/// A step for derivatives of rows, which have C expressions but no function in f64.
const STEP: f64 = 1e-5;

/// The value of a node that works element by element. Derivatives are central differences: right to about 1e-9 away from kinks.
pub(super) fn value(kind: Kind, x: &[f64]) -> f64 {
    let scalars = kind.scalars().map(f64::from);
    let x0 = x.first().copied().unwrap_or(0.0);
    match kind {
        Kind::Const(bits) => f64::from(f32::from_bits(bits)),
        Kind::Unary(row, _) => (unary_of(row).f)(x0, scalars),
        Kind::Binary(row) => (binary_of(row).f)(x0, x[1]),
        Kind::UnaryGrad(row, _) => {
            let f = |x| (unary_of(row).f)(x, scalars);
            slope(f, x0) * x[1]
        }
        Kind::BinaryGrad(row, second) => {
            let f = binary_of(row).f;
            x[2] * if second { slope(|b| f(x0, b), x[1]) } else { slope(|a| f(a, x[1]), x0) }
        }
        Kind::Compare(row) => f64::from((COMPARISONS[row].f)(x0, x[1])),
        Kind::Where => {
            if x0 == 0.0 {
                x[2]
            } else {
                x[1]
            }
        }
        Kind::Cast(dtype @ (DType::I32 | DType::U32)) => dtype.round(x0.round_ties_even()),
        Kind::Cast(dtype) => dtype.round(x0),
        Kind::Input(_) | Kind::Expand | Kind::Detach | Kind::Stored | Kind::Reduce(..) => x0,
    }
}

fn slope(f: impl Fn(f64) -> f64, x: f64) -> f64 {
    let h = STEP * x.abs().max(1.0);
    (f(x + h) - f(x - h)) / (2.0 * h)
}

impl Nodes {
    /// The arrays of `roots`, given those of the inputs. A derivative node of a row that saves its output has the input as its
    /// argument's argument.
    pub(super) fn interpret(&self, roots: &[usize], inputs: &[Array]) -> Vec<Array> {
        let mut found: Vec<Option<Array>> = vec![None; self.all.len()];
        for id in self.cone(roots, |_| false) {
            let node = &self.all[id];
            let array = match node.kind {
                Kind::Input(i) => inputs[i].clone(),
                Kind::Reduce(how, _) => {
                    let x = found[node.args[0]].take();
                    let out = x.as_ref().map(|x| reduced(how, x, &node.shape));
                    found[node.args[0]] = x;
                    out.unwrap_or_else(|| Array::zeros(node.shape.clone()))
                }
                kind => {
                    let args: Vec<Array> = self
                        .operands(id)
                        .iter()
                        .filter_map(|a| found[*a].as_ref().map(|x| x.expand(&node.shape)))
                        .collect();
                    Array::from_fn(node.shape.clone(), |i| {
                        value(kind, &args.iter().map(|x| x.data[i]).collect::<Vec<_>>())
                    })
                }
            };
            found[id] = Some(array);
        }
        roots.iter().map(|id| found[*id].clone().unwrap_or_else(|| Array::zeros(Shape::default()))).collect()
    }

    /// The arguments that [`value`] takes.
    fn operands(&self, id: usize) -> Vec<usize> {
        let mut args = self.all[id].args.clone();
        if let Kind::UnaryGrad(row, _) = self.all[id].kind {
            if unary_of(row).saves == crate::ops::elementwise::Saves::Output {
                args[0] = self.all[args[0]].args[0];
            }
        }
        args
    }
}

fn reduced(how: Reduction, x: &Array, kept: &Shape) -> Array {
    let start = if how == Reduction::Sum { 0.0 } else { f64::NEG_INFINITY };
    let mut out = Array::from_fn(kept.clone(), |_| start);
    let strides = kept.strides();
    for (i, v) in x.data.iter().enumerate() {
        let at = unravel(i, &x.shape);
        let to: usize = (0..at.len()).filter(|d| kept.dims()[*d] != 1).map(|d| at[d] * strides[d]).sum();
        let old = out.data[to];
        out.data[to] = match how {
            Reduction::Sum => old + v,
            Reduction::Max if old > *v || old.is_nan() => old,
            Reduction::Max => *v,
        };
    }
    out
}
