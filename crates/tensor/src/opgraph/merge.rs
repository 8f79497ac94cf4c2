//! Merges two graphs that were recorded with different numbers of rows into one for any number of rows.

use super::spec::{GraphNode, Setting, Size, Spec, ValueType};
use crate::ops::call::Value;
use crate::{Error, Result};

/// Merges `a` and `b`, recorded with different numbers of rows, into a graph for any number of rows.
///
/// # Errors
/// `Unsupported` if they differ in something that is not a multiple of the rows.
pub(super) fn merge(a: &Spec, b: &Spec) -> Result<Spec> {
    let merger = Merger { rows: (a.rows, b.rows) };
    let refused = |what: String| {
        Error::unsupported(format!("{what}: a graph for any number of rows cannot contain it"))
    };
    for (at, node) in a.nodes.iter().enumerate() {
        let other = b.nodes.get(at).map_or("nothing", |n| n.op.as_str());
        if other != node.op {
            return Err(refused(format!(
                "with {} rows {} is called, but {other} with {} rows",
                a.rows,
                a.called(at),
                b.rows
            )));
        }
    }
    if a.nodes.len() != b.nodes.len() || a.outputs != b.outputs || a.weights.len() != b.weights.len() {
        return Err(refused(format!(
            "the computation with {} rows differs from that with {}",
            a.rows, b.rows
        )));
    }
    for (one, other) in a.weights.iter().zip(&b.weights) {
        if (&one.name, &one.dims, one.dtype) != (&other.name, &other.dims, other.dtype) {
            return Err(refused(format!(
                "{} has shape {:?} with {} rows and {:?} with {}",
                one.name, one.dims, a.rows, other.dims, b.rows
            )));
        }
    }
    let mut out = Spec { any_rows: true, ..a.clone() };
    for (input, other) in out.inputs.iter_mut().zip(&b.inputs) {
        let name = &input.name;
        input.form =
            merger.form(&input.form, &other.form).map_err(|e| refused(format!("input {name}: {e}")))?;
    }
    for (at, (node, other)) in a.nodes.iter().zip(&b.nodes).enumerate() {
        let merged = merger.node(node, other).map_err(|e| refused(format!("{}: {e}", a.called(at))))?;
        out.nodes[at] = merged;
    }
    Ok(out)
}

struct Merger {
    rows: (usize, usize),
}

impl Merger {
    fn size(&self, a: i64, b: i64) -> Result<Size, String> {
        if a == b {
            return Ok(Size::Fixed(a));
        }
        let rows = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let (ra, rb) = (rows(self.rows.0), rows(self.rows.1));
        let k = a / ra.max(1);
        match k * ra == a && k * rb == b {
            true => Ok(Size::Rows(k)),
            false => Err(format!("{a} with {ra} rows and {b} with {rb}")),
        }
    }
    fn form(&self, a: &ValueType, b: &ValueType) -> Result<ValueType, String> {
        if a.sizes.len() != b.sizes.len() || a.dtype != b.dtype {
            return Err(format!("{a} with {} rows and {b} with {}", self.rows.0, self.rows.1));
        }
        let fixed = |s: &Size| s.at(1).unwrap_or_default();
        let sizes = a.sizes.iter().zip(&b.sizes).map(|(a, b)| self.size(fixed(a), fixed(b)));
        let sizes: Result<Vec<Size>, String> = sizes.collect();
        Ok(ValueType { sizes: sizes.map_err(|e| format!("a size is {e}"))?, dtype: a.dtype })
    }
    fn node(&self, a: &GraphNode, b: &GraphNode) -> Result<GraphNode, String> {
        if (&a.inputs, a.results.len()) != (&b.inputs, b.results.len()) {
            return Err("its inputs are different values".into());
        }
        let mut out = a.clone();
        for (made, other) in out.results.iter_mut().zip(&b.results) {
            made.form = self.form(&made.form, &other.form)?;
        }
        for (i, (name, setting)) in out.attributes.iter_mut().enumerate() {
            let other = b.attributes.get(i).filter(|(known, _)| known == name);
            let Some((_, other)) = other else {
                return Err(format!("attribute {name} is not always present"));
            };
            *setting = self.setting(setting, other).map_err(|e| format!("attribute {name} is {e}"))?;
        }
        Ok(out)
    }
    fn setting(&self, a: &Setting, b: &Setting) -> Result<Setting, String> {
        let (Setting::Plain(x), Setting::Plain(y)) = (a, b) else { return Ok(a.clone()) };
        match (x, y) {
            (x, y) if x == y => Ok(a.clone()),
            (Value::Int(x), Value::Int(y)) => Ok(match self.size(*x, *y)? {
                Size::Fixed(n) => Setting::Plain(Value::Int(n)),
                Size::Rows(k) => Setting::Rows(k),
            }),
            (Value::Ints(x), Value::Ints(y)) if x.len() == y.len() => {
                x.iter().zip(y).map(|(x, y)| self.size(*x, *y)).collect::<Result<_, _>>().map(Setting::Sizes)
            }
            (x, y) => {
                Err(format!("{} with {} rows and {} with {}", x.shown(), self.rows.0, y.shown(), self.rows.1))
            }
        }
    }
}
