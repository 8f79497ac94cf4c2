//! Determines which operations process each row of their inputs, along the first axis, independently.
//!
//! A graph for any number of rows computes additional rows, whose results are cut off. The remaining results are correct if every operation
//! is one of these:
//!
//! - elementwise: the elementwise ops, casts, comparisons, selections, `add_relu`, `gated`;
//! - along axes other than the first: softmax, sums and similar, sorting, `cat`, `slice`, `flip`, `pad`, `gather`, …;
//! - per image, sequence or row: convolutions, pooling, interpolation, group and layer norm, batch norm with given statistics, linear maps,
//!   matrix products, attention, embeddings;
//! - `reshape`, `expand` and `permute` that keep the rows in the first axis.
//!
//! Batch norm with the statistics of its batch, losses, dropout and routing mix or count rows. They are rejected by name.

use super::spec::{Setting, Spec};
use crate::ops::call::Value;
use crate::ops::elementwise::{BINARY, UNARY};
use crate::ops::find;
use crate::{Error, Result};

/// Inputs of an operation that may grow with the rows.
enum Rule {
    /// Any of its inputs.
    Any,
    /// Any of its inputs, unless it works along the first axis, which an attribute `axis` or `axes` may name.
    Along,
    /// These inputs; the others are the same for all rows.
    Only(&'static [usize]),
}

/// Rules of the operations, except for elementwise ops.
const RULES: [(Rule, &[&str]); 6] = [
    (
        Rule::Any,
        &[
            "cast",
            "where",
            "where_cond",
            "masked_fill",
            "eq",
            "lt",
            "le",
            "gt",
            "ge",
            "add_relu",
            "gated",
            "one_hot",
            "contiguous",
            "reshape",
            "expand",
            "permute",
            "matmul",
            "attention",
            "attention_qkv",
        ],
    ),
    (
        Rule::Along,
        &[
            "softmax",
            "log_softmax",
            "logsumexp",
            "sum",
            "sum_f32",
            "mean",
            "max",
            "argmax",
            "topk",
            "sort",
            "cumsum",
            "cat",
            "slice",
            "gather",
        ],
    ),
    (
        Rule::Only(&[0]),
        &[
            "layer_norm",
            "rms_norm",
            "residual_layer_norm",
            "residual_rms_norm",
            "conv2d",
            "conv_transpose2d",
            "max_pool2d",
            "adaptive_max_pool2d",
            "adaptive_avg_pool2d",
            "avg_pool2d",
            "linear",
            "rope",
        ],
    ),
    (Rule::Only(&[0, 1]), &["linear_add", "linear_residual", "feed_forward"]),
    (Rule::Only(&[0, 5]), &["fused_linear"]),
    (Rule::Only(&[1]), &["embedding"]),
];

fn rule(op: &str) -> Option<&'static Rule> {
    if UNARY.iter().any(|row| row.name == op) || BINARY.iter().any(|row| row.name == op) {
        return Some(&Rule::Any);
    }
    RULES.iter().find(|(_, names)| names.contains(&op)).map(|(rule, _)| rule)
}

/// Returns whether an attribute's value names the first of `rank` axes.
fn names_first(setting: &Setting, rank: usize) -> bool {
    let rank = i64::try_from(rank).unwrap_or(i64::MAX);
    let first = |axis: &i64| *axis == 0 || *axis == -rank;
    match setting {
        Setting::Plain(Value::Int(axis)) => first(axis),
        // An empty list means all axes.
        Setting::Plain(Value::Ints(axes)) => axes.is_empty() || axes.iter().any(first),
        Setting::Plain(_) => false,
        Setting::Rows(_) | Setting::Sizes(_) => true,
    }
}

/// Rejects a graph that does not process each row independently.
///
/// # Errors
/// `Unsupported` with the operation and the reason.
pub(super) fn check(spec: &Spec) -> Result<()> {
    let forms = spec.forms();
    let mut depends: Vec<bool> = vec![false; forms.len()];
    depends[..spec.inputs.len()].fill(true);
    let mut next = spec.first_made();
    for (at, node) in spec.nodes.iter().enumerate() {
        let refuse = |why: &str| {
            Err(Error::unsupported(format!(
                "{} {why}: a graph for any number of rows needs operations that process each row, along the first axis, independently",
                spec.called(at)
            )))
        };
        let made = next..next + node.results.len();
        next = made.end;
        let given = node.inputs.iter().map(|id| id.is_some_and(|id| depends[id]));
        let given: Vec<bool> = given.collect();
        let grows = node.results.iter().any(|made| made.form.has_rows());
        if !given.contains(&true) && !grows {
            continue;
        }
        if node.results.iter().any(|made| !made.form.rows_first()) {
            return refuse("gives a result whose first axis is not just the rows");
        }
        depends[made].fill(true);
        match rule(&node.op) {
            None => return refuse("mixes rows, or is not known to process each independently"),
            Some(Rule::Any) => {}
            Some(Rule::Only(inputs)) => {
                if given.iter().enumerate().any(|(i, given)| *given && !inputs.contains(&i)) {
                    return refuse("has a weight that depends on the inputs");
                }
            }
            Some(Rule::Along) => {
                let rank = node.inputs.iter().flatten().map(|id| forms[*id].sizes.len()).max().unwrap_or(0);
                let call = find(&node.op)?;
                let usual =
                    call.attributes.iter().filter_map(|a| Some((a.name, Setting::Plain(a.default.clone()?))));
                let told = |name: &str| {
                    node.attributes.iter().find(|(known, _)| known == name).map(|(_, s)| s.clone())
                };
                let all = usual.map(|(name, default)| (name, told(name).unwrap_or(default)));
                let required = node.attributes.iter().map(|(name, s)| (name.as_str(), s.clone()));
                let mut axes = all.chain(required).filter(|(name, _)| matches!(*name, "axis" | "axes"));
                if axes.any(|(_, setting)| names_first(&setting, rank)) {
                    return refuse("works along the rows");
                }
            }
        }
    }
    match spec.outputs.iter().position(|id| !forms[*id].rows_first()) {
        Some(i) => Err(Error::unsupported(format!(
            "result {i} has the shape {}: a graph for any number of rows must return as many rows as its inputs have",
            forms[spec.outputs[i]]
        ))),
        None => Ok(()),
    }
}
