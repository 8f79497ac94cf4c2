//! A graph of operations as text and as JSON.

use super::OpGraph;
use super::spec::{GraphNode, Spec};
use netcl_device::human;
use std::fmt;

/// Formats value numbers: `%3, %4`, with `-` for an omitted input.
fn ids(inputs: &[Option<usize>]) -> String {
    inputs.iter().map(|id| id.map_or("-".into(), |id| format!("%{id}"))).collect::<Vec<_>>().join(", ")
}

/// Formats the attributes as `name=value`.
pub(super) fn attributes(node: &GraphNode) -> String {
    node.attributes.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// Lists the kernels without duplicates: the variant, and its function if that has another name.
pub(super) fn kernels(node: &GraphNode) -> String {
    let mut names: Vec<String> = Vec::new();
    for k in &node.kernels {
        let name = if k.variant == k.name { k.name.clone() } else { format!("{}:{}", k.variant, k.name) };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}

/// Returns the bytes of the weights.
fn weight_bytes(spec: &Spec) -> u64 {
    let bytes = |dims: &[usize], size: usize| dims.iter().fold(size, |n, d| n.saturating_mul(*d)) as u64;
    spec.weights.iter().map(|w| bytes(&w.dims, w.dtype.size())).sum()
}

impl fmt::Display for Spec {
    /// Formats inputs, weights, and one line per operation: values, name, inputs, shape, layer, and the kernels of the recording device.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = if self.any_rows { "any number of rows" } else { "fixed shapes" };
        writeln!(f, "graph of {} operations for {rows}, recorded on {}", self.nodes.len(), self.device)?;
        for (i, input) in self.inputs.iter().enumerate() {
            writeln!(f, "input  %{i} {} {}", input.name, input.form)?;
        }
        let count = self.weights.len();
        for (i, w) in self.weights.iter().enumerate() {
            writeln!(f, "weight %{} {} {} {:?}", self.inputs.len() + i, w.name, w.dtype, w.dims)?;
        }
        let mut next = self.first_made();
        let mut lines = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let made: Vec<String> = (next..next + node.results.len()).map(|id| format!("%{id}")).collect();
            next += node.results.len();
            let forms: Vec<String> = node.results.iter().map(|made| made.form.to_string()).collect();
            let given = attributes(node);
            let space = if given.is_empty() { "" } else { " " };
            let call = format!("{} = {}({}){space}{given}", made.join(", "), node.op, ids(&node.inputs));
            lines.push((call, forms.join(", "), node.layer.clone(), kernels(node)));
        }
        let width = |part: fn(&(String, String, String, String)) -> &String| {
            lines.iter().map(|line| part(line).chars().count()).max().unwrap_or(0).min(70)
        };
        let (a, b, c) = (width(|l| &l.0), width(|l| &l.1), width(|l| &l.2));
        for (call, forms, layer, kernels) in &lines {
            let line = format!("{call:a$}  {forms:b$}  {layer:c$}  {kernels}");
            writeln!(f, "{}", line.trim_end())?;
        }
        let outputs: Vec<Option<usize>> = self.outputs.iter().copied().map(Some).collect();
        writeln!(f, "output {}", ids(&outputs))?;
        write!(f, "{count} weights of {}", human(weight_bytes(self)))
    }
}

impl fmt::Display for OpGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)
    }
}

impl Spec {
    /// Converts to JSON as in its file, except for hashes of weights that were never saved.
    pub fn to_json(&self) -> serde_json::Value {
        super::json::write(self)
    }
}
