//! The gradient of a tree: a tree over the same inputs and the gradient of the result.

use super::node::{NodeKind, Nodes, ReductionKind, binary_of, binary_row, unary_of};
use crate::Result;
use crate::ops::elementwise::Saves;
use crate::ops::map::places;

impl Nodes {
    /// Builds the gradients of `inputs` (nodes) from those of the roots, given as pairs `(root, dy)`. `None` if no root depends on an
    /// input. Each gradient has the input's shape, except for leading ones.
    pub(super) fn gradients(
        &mut self,
        roots: &[(usize, usize)],
        inputs: &[usize],
    ) -> Result<Vec<Option<usize>>> {
        let ids: Vec<usize> = roots.iter().map(|(root, _)| *root).collect();
        let cone = self.cone(&ids, |id| self.kind(id) == NodeKind::Detach);
        let mut wanted = vec![false; self.all.len()];
        for id in &cone {
            let through = !matches!(self.kind(*id), NodeKind::Detach | NodeKind::Compare(_));
            wanted[*id] = inputs.contains(id) || through && self.all[*id].args.iter().any(|a| wanted[*a]);
        }
        let mut found: Vec<Option<usize>> = vec![None; wanted.len()];
        for (root, dy) in roots {
            found[*root] = Some(self.added(found[*root], *dy)?);
        }
        for id in cone.into_iter().rev().filter(|id| wanted[*id]) {
            let Some(dy) = found[id] else { continue };
            for (arg, part) in self.parts(id, dy, &wanted)? {
                let part = self.summed_to(part, &self.shape(arg).clone())?;
                found[arg] = Some(self.added(found[arg], part)?);
            }
        }
        Ok(inputs.iter().map(|id| found.get(*id).copied().flatten()).collect())
    }

    fn added(&mut self, before: Option<usize>, part: usize) -> Result<usize> {
        match before {
            Some(before) => self.made(NodeKind::Binary(binary_row("add")?), &[before, part]),
            None => Ok(part),
        }
    }

    /// Returns the gradient contributions of `dy`, the gradient of node `id`, to the arguments that need them, in the shape of the node.
    fn parts(&mut self, id: usize, dy: usize, wanted: &[bool]) -> Result<Vec<(usize, usize)>> {
        let (kind, args, shape) = (self.kind(id), self.all[id].args.clone(), self.shape(id).clone());
        let mut out = Vec::new();
        for (at, arg) in args.iter().copied().enumerate().filter(|(_, arg)| wanted[*arg]) {
            let part = match kind {
                NodeKind::Unary(row, scalars) => {
                    let saved = if unary_of(row).saves == Saves::Output { id } else { arg };
                    match unary_of(row).dx {
                        "x1" => dy,
                        text => {
                            let [saved] = read(text, [saved], dy);
                            self.made(NodeKind::UnaryGrad(row, scalars), &[saved, dy])?
                        }
                    }
                }
                NodeKind::Binary(row) => {
                    let text = if at == 0 { binary_of(row).da } else { binary_of(row).db };
                    match text {
                        "" => dy,
                        _ => {
                            let [a, b] = read(text, [args[0], args[1]], dy);
                            self.made(NodeKind::BinaryGrad(row, at == 1), &[a, b, dy])?
                        }
                    }
                }
                NodeKind::Where if at > 0 => {
                    let zero = self.number(0.0);
                    let [a, b] = if at == 1 { [dy, zero] } else { [zero, dy] };
                    self.made(NodeKind::Where, &[args[0], a, b])?
                }
                NodeKind::Cast(_) | NodeKind::Expand | NodeKind::Stored => dy,
                NodeKind::Reduce(ReductionKind::Sum, _) => dy,
                NodeKind::Reduce(ReductionKind::Max, mask) => self.part_of_max(arg, mask, dy)?,
                _ => continue,
            };
            let whole = if kind.is_reduction() { self.shape(arg).clone() } else { shape.clone() };
            // An operand that occurs twice in a node receives both contributions.
            out.push((arg, self.expanded_to(part, &whole)?));
        }
        Ok(out)
    }

    /// Distributes the gradient of a maximum. Ties share it evenly. Elements are compared as stored, because a value computed twice could
    /// differ in its last bit.
    fn part_of_max(&mut self, arg: usize, mask: u32, dy: usize) -> Result<usize> {
        let x = match self.kind(arg) {
            NodeKind::Input(_) => arg,
            _ => self.made(NodeKind::Stored, &[arg])?,
        };
        let y = self.reduced(ReductionKind::Max, x, mask)?;
        let ties = self.made(NodeKind::Compare(0), &[x, y])?;
        let count = self.reduced(ReductionKind::Sum, ties, mask)?;
        let [mul, div] = [binary_row("mul")?, binary_row("div")?];
        let share = self.made(NodeKind::Binary(div), &[dy, count])?;
        self.made(NodeKind::Binary(mul), &[ties, share])
    }

    /// Like [`Nodes::expanded`], but the node may have more leading ones than `shape` has axes.
    fn expanded_to(&mut self, id: usize, shape: &crate::Shape) -> Result<usize> {
        let both = self.shape(id).broadcast(shape, "expand")?;
        self.expanded(id, &both)
    }
}

/// Returns the operands that a derivative reads, and `dy` in the place of the others.
fn read<const N: usize>(text: &str, operands: [usize; N], dy: usize) -> [usize; N] {
    std::array::from_fn(|i| if places(text, i).next().is_some() { operands[i] } else { dy })
}
