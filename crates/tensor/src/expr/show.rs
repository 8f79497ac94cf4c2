//! Formats trees for people: one node per line, in the order of computation.

use super::node::{NodeKind, Nodes};
use std::fmt::Write as _;

/// Formats the nodes that `roots` depend on: number, operation, arguments, shape.
pub(super) fn tree(nodes: &Nodes, roots: &[usize]) -> String {
    let mut out = String::new();
    for id in nodes.cone(roots, |_| false) {
        let node = &nodes.all[id];
        let args: Vec<String> = node.args.iter().map(|arg| format!("v{arg}")).collect();
        let count = match node.kind {
            NodeKind::Unary(row, _) | NodeKind::UnaryGrad(row, _) => super::node::unary_of(row).scalars.len(),
            _ => 0,
        };
        let scalars = node.kind.scalars().into_iter().take(count).map(|s| format!("{s:?}"));
        let axes = match node.kind {
            NodeKind::Reduce(_, mask) => {
                let axes: Vec<String> =
                    (0..32).filter(|b| mask & (1 << b) != 0).map(|b| format!("-{}", b + 1)).collect();
                vec![format!("axes [{}]", axes.join(", "))]
            }
            _ => Vec::new(),
        };
        let args: Vec<String> = args.into_iter().chain(scalars).chain(axes).collect();
        let args = if args.is_empty() { String::new() } else { format!("({})", args.join(", ")) };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "v{id} = {}{args}  {}", node.kind.name(), node.shape);
    }
    out
}
