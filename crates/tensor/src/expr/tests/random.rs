//! Random trees against their interpreter in f64, gradients against central differences. What fails is shrunk to the smallest part
//! of the tree that does, and printed.

use super::super::node::{Kind, Nodes, Reduction, binary_of, binary_row, unary_of};
use super::super::{gradient_roots, run, show};
use super::devices;
use crate::array::Array;
use crate::ops::elementwise::{BINARY, UNARY};
use crate::ops::mask::COMPARISONS;
use crate::{DType, Device, Result, Shape, Tensor, no_grad};

/// Trees a kernel: building takes most of the time.
const BATCH: usize = 12;

/// xorshift64*.
struct Draw(u64);

impl Draw {
    fn next(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n as u64) as usize
    }
    fn unit(&mut self) -> f32 {
        self.next(1 << 20) as f32 / (1 << 20) as f32
    }
}

/// Trees over shared inputs.
struct Batch {
    nodes: Nodes,
    roots: Vec<usize>,
    data: Vec<Array>,
}

fn shapes(draw: &mut Draw) -> Vec<Shape> {
    let rank = 1 + draw.next(3);
    let sizes = [1, 2, 3, 5, 8, 17, 33];
    let whole: Vec<usize> = (0..rank).map(|_| sizes[draw.next(sizes.len())]).collect();
    let part = |draw: &mut Draw| {
        let from = draw.next(rank + 1);
        let dims: Vec<usize> = whole[from..].iter().map(|n| if draw.next(3) == 0 { 1 } else { *n }).collect();
        Shape::from(dims)
    };
    vec![Shape::from(whole.clone()), part(draw), part(draw)]
}

/// Every value is finite, none is so large that rounding is amplified, and no element is at a kink or a jump: f32 and f64 fall on
/// the same side, and differences are derivatives.
fn is_smooth(nodes: &Nodes, id: usize, values: &[Array]) -> bool {
    let node = &nodes.all[id];
    let y = &values[id];
    if y.data.iter().any(|v| !v.is_finite() || v.abs() > 30.0) {
        return false;
    }
    let near = |a: f64, b: f64| (a - b).abs() < 0.03;
    let arg = |at: usize| values[node.args[at]].expand(&node.shape);
    match node.kind {
        Kind::Unary(row, _) => {
            let row = unary_of(row);
            let s = node.kind.scalars().map(f64::from);
            arg(0).data.iter().all(|x| {
                let [a, b, c] = [-0.02, 0.0, 0.02].map(|h| (row.f)(x + h, s));
                let slope = (c - a).abs() / 0.04;
                a.is_finite()
                    && c.is_finite()
                    && slope < 20.0
                    && (a + c - 2.0 * b).abs() < 0.004 + 0.1 * (c - a).abs()
            })
        }
        Kind::Binary(row) => match binary_of(row).name {
            "maximum" | "minimum" => arg(0).data.iter().zip(&arg(1).data).all(|(a, b)| !near(*a, *b)),
            "div" => arg(1).data.iter().all(|b| b.abs() > 0.3),
            _ => true,
        },
        Kind::Compare(_) => arg(0).data.iter().zip(&arg(1).data).all(|(a, b)| !near(*a, *b)),
        Kind::Reduce(Reduction::Max, _) => {
            let x = &values[node.args[0]];
            let y = y.expand(&x.shape);
            x.data.iter().zip(&y.data).filter(|(x, y)| near(**x, **y)).count() == node.shape.count()
        }
        _ => true,
    }
}

/// A node over some of those before, or none where it would not be smooth.
fn grow(nodes: &mut Nodes, draw: &mut Draw, known: &[usize]) -> Option<usize> {
    let pick = |draw: &mut Draw| known[known.len() - 1 - draw.next(known.len()).min(draw.next(known.len()))];
    let (a, b) = (pick(draw), pick(draw));
    let made = match draw.next(20) {
        0..=8 => {
            let row = draw.next(UNARY.len());
            let mut bits = [0; 2];
            bits.iter_mut().zip(UNARY[row].scalars).for_each(|(b, s)| *b = s.1.to_bits());
            nodes.made(Kind::Unary(row, bits), &[a])
        }
        9..=13 => nodes.made(Kind::Binary(draw.next(BINARY.len())), &[a, b]),
        14 => {
            let mask = nodes.made(Kind::Compare(1 + draw.next(COMPARISONS.len() - 1)), &[a, b]).ok()?;
            nodes.made(Kind::Where, &[mask, pick(draw), a])
        }
        15 => {
            let number = nodes.number(draw.unit() * 4.0 - 2.0);
            nodes.made(Kind::Binary(draw.next(3)), &[number, a])
        }
        16 if matches!(nodes.kind(a), Kind::Input(_)) => {
            nodes.made(Kind::Cast(DType::FLOATS[draw.next(3)]), &[a])
        }
        kind => {
            let rank = nodes.shape(a).rank();
            // Mostly the last axes.
            let mask = if draw.next(4) > 0 {
                (1u32 << draw.next(rank + 1)) - 1
            } else {
                draw.next(1 << rank) as u32
            };
            let how = if kind == 17 { Reduction::Max } else { Reduction::Sum };
            nodes.reduced(how, a, mask)
        }
    };
    made.ok()
}

fn batch(seed: u64) -> Batch {
    let mut draw = Draw(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    // The first numbers of near seeds are near.
    let _ = [0; 8].map(|_| draw.next(2));
    let mut nodes = Nodes::default();
    let shapes = shapes(&mut draw);
    let data: Vec<Array> =
        shapes.iter().map(|s| Array::from_fn(s.clone(), |_| f64::from(draw.unit() * 4.0 - 2.0))).collect();
    let inputs: Vec<usize> = shapes.iter().enumerate().map(|(i, s)| nodes.input(i, s)).collect();
    let mut roots = Vec::new();
    while roots.len() < BATCH {
        let mut known = inputs.clone();
        let size = 2 + draw.next(11);
        for _ in 0..4 * size {
            if known.len() >= size + inputs.len() {
                break;
            }
            let before = nodes.clone();
            let Some(id) = grow(&mut nodes, &mut draw, &known) else { continue };
            let all: Vec<usize> = (0..=id).collect();
            let values = nodes.interpret(&all, &data);
            // A choice brings its mask along.
            let new = before.all.len()..nodes.all.len();
            if nodes.shape(id).count() > 4096 || !new.chain([id]).all(|id| is_smooth(&nodes, id, &values)) {
                nodes = before;
                continue;
            }
            known.push(id);
        }
        match known.last() {
            Some(root) if known.len() > inputs.len() => roots.push(*root),
            _ => {}
        }
    }
    Batch { nodes, roots, data }
}

fn upload(device: &Device, data: &[Array]) -> Vec<Tensor> {
    let one = |x: &Array| {
        let values: Vec<f32> = x.data.iter().map(|v| *v as f32).collect();
        Tensor::from_f32(device, x.shape.clone(), &values, DType::F32).unwrap()
    };
    data.iter().map(one).collect()
}

/// The roots on the device against the interpreter's; the first that differs is an error.
pub(super) fn compare(
    nodes: &Nodes,
    device: &Device,
    roots: &[usize],
    data: &[Array],
    tolerance: f64,
) -> std::result::Result<(), String> {
    let expected = nodes.interpret(roots, data);
    let run = || run::run(nodes, device, (roots, &vec![DType::F32; roots.len()]), &upload(device, data));
    let got = no_grad(run).map_err(|e| e.to_string())?;
    for ((root, expected), got) in roots.iter().zip(expected).zip(got) {
        near(&got, &expected.data, tolerance).map_err(|why| format!("node v{root}: {why}"))?;
    }
    Ok(())
}

fn near(got: &Tensor, expected: &[f64], tolerance: f64) -> std::result::Result<(), String> {
    let got = got.to_vec().map_err(|e| e.to_string())?;
    let largest = expected.iter().fold(1.0f64, |m, v| m.max(v.abs()));
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        if f64::from(*g).to_bits() != e.to_bits()
            && (f64::from(*g) - e).abs().partial_cmp(&(tolerance * largest)) != Some(std::cmp::Ordering::Less)
        {
            return Err(format!("element {i} is {g}, expected {e}"));
        }
    }
    if got.len() == expected.len() {
        Ok(())
    } else {
        Err(format!("{} elements, expected {}", got.len(), expected.len()))
    }
}

/// The sum of the roots' elements, each root with a weight, and its gradients, against differences at some elements of each input.
fn compare_gradients(batch: &Batch, device: &Device, roots: &[usize]) -> std::result::Result<(), String> {
    let mut nodes = batch.nodes.clone();
    let text = |e: crate::Error| e.to_string();
    let root = total(&mut nodes, roots).map_err(text)?;
    let mut tensors = upload(device, &batch.data);
    tensors.push(Tensor::ones(device, nodes.shape(root), DType::F32).map_err(text)?);
    let (gradients, dtypes, numbers) = gradient_roots(&mut nodes, root, &tensors, |_| true).map_err(text)?;
    let found = no_grad(|| run::run(&nodes, device, (&gradients, &dtypes), &tensors)).map_err(text)?;
    for (input, grad) in numbers.into_iter().zip(found) {
        let grad = grad.to_vec().map_err(text)?;
        let count = batch.data[input].data.len();
        let largest = grad.iter().fold(1.0f64, |m, v| m.max(f64::from(v.abs())));
        for at in (0..count).step_by(count.div_ceil(3)) {
            let value = |h: f64| {
                let mut data = batch.data.clone();
                data[input].data[at] += h;
                nodes.interpret(&[root], &data)[0].data[0]
            };
            let h = 1e-4;
            let slope = (value(h) - value(-h)) / (2.0 * h);
            let wrong = (slope - f64::from(grad[at])).abs() > 2e-3 * largest;
            if wrong || !grad[at].is_finite() {
                return Err(format!("gradient of x{input} [{at}] is {}, expected {slope}", grad[at]));
            }
        }
    }
    Ok(())
}

fn total(nodes: &mut Nodes, roots: &[usize]) -> Result<usize> {
    let [add, mul] = [Kind::Binary(binary_row("add")?), Kind::Binary(binary_row("mul")?)];
    let mut all = nodes.number(0.0);
    for (i, root) in roots.iter().enumerate() {
        let weight = nodes.number(1.0 / (1.0 + i as f32));
        let part = nodes.made(mul, &[*root, weight])?;
        let rank = nodes.shape(part).rank();
        let part = nodes.reduced(Reduction::Sum, part, (1 << rank) - 1)?;
        all = nodes.made(add, &[all, part])?;
    }
    Ok(all)
}

/// The smallest part of a failing tree that fails.
fn shrunk(batch: &Batch, root: usize, check: impl Fn(usize) -> std::result::Result<(), String>) -> String {
    let cone = batch.nodes.cone(&[root], |_| false);
    let failing =
        cone.into_iter().filter(|id| !matches!(batch.nodes.kind(*id), Kind::Const(_) | Kind::Input(_)));
    for id in failing {
        if let Err(why) = check(id) {
            return format!("{why}\n{}", show::tree(&batch.nodes, &[id]));
        }
    }
    "fails only beside others".into()
}

fn check(batch: &Batch, device: &Device, seed: u64) {
    if let Err(why) = compare(&batch.nodes, device, &batch.roots, &batch.data, 1e-4) {
        for root in &batch.roots {
            let one = |id| compare(&batch.nodes, device, &[id], &batch.data, 1e-4);
            assert!(one(*root).is_ok(), "seed {seed}: {}", shrunk(batch, *root, one));
        }
        panic!("seed {seed}: only together: {why}");
    }
    // Conversions are steps, whose derivative is taken for 1.
    let smooth = |root: &usize| {
        !batch.nodes.cone(&[*root], |_| false).iter().any(|id| matches!(batch.nodes.kind(*id), Kind::Cast(_)))
    };
    let roots: Vec<usize> = batch.roots.iter().copied().filter(smooth).collect();
    if let Err(why) = compare_gradients(batch, device, &roots) {
        for root in &roots {
            let one = |id| compare_gradients(batch, device, &[id]);
            assert!(one(*root).is_ok(), "seed {seed}: {}", shrunk(batch, *root, one));
        }
        panic!("seed {seed}: gradients, only together: {why}");
    }
}

/// `NETCL_TEST_TREES` says how many trees; 5000 are the full proof.
#[test]
fn random_trees_agree_with_the_interpreter() {
    let trees = std::env::var("NETCL_TEST_TREES").ok().and_then(|n| n.parse().ok()).unwrap_or(48usize);
    let first = std::env::var("NETCL_TEST_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0u64);
    let devices = devices();
    for seed in first..first + trees.div_ceil(BATCH) as u64 {
        let batch = batch(seed);
        devices.iter().for_each(|device| check(&batch, device, seed));
    }
}
