//! Random programs of ops, lazy and eager.

use super::{close, devices, tensor};
use crate::ops::matmul::linear;
use crate::{Device, Result, Tensor, lazy};

/// An op on results of earlier ops. Indices count the leaves too.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    op: usize,
    args: [usize; 3],
}

const OPS: usize = 21;
const SHAPES: [&[usize]; 5] = [&[4, 7], &[7], &[4, 1], &[1], &[7, 7]];

/// Returns a number below `n`.
fn draw(state: &mut u64, n: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*state >> 33) as usize) % n
}

fn program(seed: u64) -> Vec<Line> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1;
    let lines = 3 + draw(&mut state, 12);
    (0..lines)
        .map(|i| {
            let known = SHAPES.len() + i;
            // Prefers the newest results.
            let args = std::array::from_fn(|_| {
                if i > 0 && draw(&mut state, 2) == 0 {
                    known - 1 - draw(&mut state, i.min(3))
                } else {
                    draw(&mut state, known)
                }
            });
            Line { op: draw(&mut state, OPS), args }
        })
        .collect()
}

/// Functions that keep their arguments small, so that rounding errors stay small.
fn apply(op: usize, [a, b, c]: [&Tensor; 3]) -> Result<Tensor> {
    match op {
        0 => a.add(b)?.tanh(),
        1 => a.sub(b)?.tanh(),
        2 => a.mul(b),
        3 => a.div(&b.square()?.add_scalar(1.0)?),
        4 => a.gelu(),
        5 => a.silu(),
        6 => a.sigmoid(),
        7 => a.sin(),
        8 => a.mul_scalar(-0.7),
        9 => a.abs()?.add_scalar(0.5)?.log(),
        10 => a.softmax(-1),
        11 => a.log_softmax(-1)?.mul_scalar(0.1),
        12 => a.mean(&[-1], true),
        13 => a.sum(&[], false)?.tanh(),
        14 => a.max(&[-1], true),
        15 => a.detach().add(b)?.tanh(),
        16 => a.lt(b)?.where_cond(b, c),
        17 => a.mean(&[-1], false)?.tanh(),
        // The last argument is the square matrix.
        18 => a.mul_scalar(0.2)?.matmul(c),
        19 => linear(a, &c.mul_scalar(0.2)?, Some(b))?.gelu(),
        // A view, and an op that is not a tree node.
        _ => a.reshape([a.count()])?.cumsum(0)?.mul_scalar(0.1)?.reshape(a.shape()),
    }
}

/// Shape errors are the same in both modes: a line whose op fails is skipped.
fn values(lines: &[Line], leaves: &[Tensor]) -> Vec<Tensor> {
    let mut all = leaves.to_vec();
    for line in lines {
        let [a, b, c] = line.args.map(|i| &all[i]);
        let made = apply(line.op, [a, b, if [18, 19].contains(&line.op) { &leaves[4] } else { c }]);
        let made = made.unwrap_or_else(|_| all[line.args[0]].clone());
        all.push(made);
    }
    all.split_off(leaves.len())
}

/// Returns the values and the gradients of the leaves.
fn results(device: &Device, lines: &[Line], waits: bool) -> Result<Vec<Tensor>> {
    let leaves: Vec<Tensor> = SHAPES
        .iter()
        .enumerate()
        .map(|(i, dims)| tensor(device, dims, i as f32 * 0.3))
        .map(|x| x.parameter("x"))
        .collect();
    let forward = || {
        let all = values(lines, &leaves);
        // Keeps every third value, including the last one.
        let kept: Vec<Tensor> = all.iter().rev().step_by(3).cloned().collect();
        drop(all);
        let mut loss: Option<Tensor> = None;
        for x in kept.iter().filter(|x| x.requires_grad()) {
            let sum = x.square()?.sum(&[], false)?;
            loss = Some(loss.map_or(Ok(sum.clone()), |loss| loss.add(&sum))?);
        }
        Ok((kept, loss))
    };
    let (mut out, loss) = if waits { lazy(forward)? } else { forward()? };
    if let Some(loss) = loss {
        loss.backward()?;
        out.extend(leaves.iter().filter_map(Tensor::grad));
    }
    Ok(out)
}

fn differs(device: &Device, lines: &[Line]) -> bool {
    let [eager, lazily] = [false, true].map(|waits| results(device, lines, waits));
    let (Ok(eager), Ok(lazily)) = (eager, lazily) else { return true };
    eager.len() != lazily.len()
        || eager.iter().zip(&lazily).any(|(e, l)| {
            let (e, l) = (e.to_vec().unwrap(), l.to_vec().unwrap());
            let largest = e.iter().fold(1.0f32, |m, v| m.max(v.abs()));
            e.len() != l.len() || e.iter().zip(&l).any(|(e, l)| (e - l).abs() > 3e-5 * largest)
        })
}

/// Removes ops that are not needed for the failure.
fn shrunk(device: &Device, mut lines: Vec<Line>) -> Vec<Line> {
    while lines.len() > 1 && differs(device, &lines[..lines.len() - 1]) {
        lines.pop();
    }
    for i in 0..lines.len() {
        // Replaces an op by a simple one.
        let before = lines[i];
        lines[i].op = 8;
        if !differs(device, &lines) {
            lines[i] = before;
        }
    }
    lines
}

#[test]
fn random_programs_give_the_same_as_their_ops() {
    for (device, seeds) in devices().into_iter().zip([0..16, 16..60]) {
        for seed in seeds {
            let lines = program(seed);
            if !differs(&device, &lines) {
                continue;
            }
            let lines = shrunk(&device, lines);
            let [eager, lazily] = [false, true].map(|waits| results(&device, &lines, waits));
            let (eager, lazily) = (eager.unwrap(), lazily.unwrap());
            println!("seed {seed}: {lines:#?}");
            eager.iter().zip(&lazily).for_each(|(e, l)| close(l, e));
            panic!("seed {seed} differs by more than 3e-5 of the largest value, {} tensors", eager.len());
        }
    }
}
