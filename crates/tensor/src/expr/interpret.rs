//! Interprets trees in f64 on the host, node by node. Kernels are compared with the results.

use super::node::{NodeKind, Nodes, ReductionKind, unary_of, value};
use crate::Shape;
use crate::array::{Array, unravel};
use crate::ops::elementwise::Saves;

impl Nodes {
    /// Computes the arrays of `roots` from those of the inputs. If a row saves its output, its derivative node finds the input as the
    /// argument of its argument.
    pub(super) fn interpret(&self, roots: &[usize], inputs: &[Array]) -> Vec<Array> {
        let mut found: Vec<Option<Array>> = vec![None; self.all.len()];
        for id in self.cone(roots, |_| false) {
            let node = &self.all[id];
            let array = match node.kind {
                NodeKind::Input(i) => inputs[i].clone(),
                NodeKind::Reduce(how, _) => {
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

    /// Returns the arguments that [`value`] needs.
    fn operands(&self, id: usize) -> Vec<usize> {
        let mut args = self.all[id].args.clone();
        let NodeKind::UnaryGrad(row, _) = self.all[id].kind else { return args };
        if let (Saves::Output, [x, ..]) = (unary_of(row).saves, self.all[args[0]].args.as_slice()) {
            args[0] = *x;
        }
        args
    }
}

fn reduced(how: ReductionKind, x: &Array, kept: &Shape) -> Array {
    let start = if how == ReductionKind::Sum { 0.0 } else { f64::NEG_INFINITY };
    let mut out = Array::from_fn(kept.clone(), |_| start);
    let strides = kept.strides();
    for (i, v) in x.data.iter().enumerate() {
        let at = unravel(i, &x.shape);
        let to: usize = (0..at.len()).filter(|d| kept.dims()[*d] != 1).map(|d| at[d] * strides[d]).sum();
        let old = out.data[to];
        out.data[to] = match how {
            ReductionKind::Sum => old + v,
            ReductionKind::Max if old > *v || old.is_nan() => old,
            ReductionKind::Max => *v,
        };
    }
    out
}
