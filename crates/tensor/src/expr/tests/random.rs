//! Compares random trees with their interpreter in f64, and gradients with central differences. A failing tree is reduced to its smallest
//! failing part and printed.

use super::super::node::{NodeKind, Nodes, ReductionKind, binary_of, binary_row, unary_of};
use super::super::{gradient_roots, run, show};
use super::devices;
use crate::array::Array;
use crate::ops::elementwise::{BINARY, UNARY};
use crate::ops::mask::COMPARISONS;
use crate::{DType, Device, Result, Shape, Tensor, no_grad};
use netcl_device::draw::Draw;

/// Trees per kernel. Compiling takes most of the time.
const BATCH: usize = 12;

/// Trees with shared inputs.
pub(super) struct TreeBatch {
    pub(super) nodes: Nodes,
    pub(super) roots: Vec<usize>,
    pub(super) data: Vec<Array>,
    /// Storage types and layouts of the inputs.
    pub(super) stored: Vec<(DType, Lie)>,
}

/// Layout of an input in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lie {
    Contiguous,
    /// With reversed axes.
    Reversed,
    /// A slice of longer rows, starting at their second element.
    Part,
    /// Contiguous, after three other elements.
    Behind,
}

/// The usual input.
pub(super) const F32: (DType, Lie) = (DType::F32, Lie::Contiguous);
/// Index of the input with integers: a mask, or small numbers.
const INTEGERS: usize = 3;

fn shapes(draw: &mut Draw) -> Vec<Shape> {
    let rank = 1 + draw.below(3);
    let sizes = [1, 2, 3, 5, 8, 17, 32, 33, 64];
    let mut whole: Vec<usize> = (0..rank).map(|_| sizes[draw.below(sizes.len())]).collect();
    if draw.below(24) == 0 {
        whole[draw.below(rank)] = 0;
    }
    while whole.iter().product::<usize>() > 4096 {
        let largest = (0..rank).max_by_key(|d| whole[*d]).unwrap();
        whole[largest] = 8;
    }
    let part = |draw: &mut Draw| {
        let from = draw.below(rank + 1);
        let dims: Vec<usize> =
            whole[from..].iter().map(|n| if draw.below(3) == 0 { 1 } else { *n }).collect();
        Shape::from(dims)
    };
    vec![Shape::from(whole.clone()), part(draw), part(draw), part(draw)]
}

fn stored(draw: &mut Draw) -> Vec<(DType, Lie)> {
    let mut one = |at: usize| {
        let dtype = match at {
            INTEGERS => [DType::Bool, DType::U32, DType::I32][draw.below(3)],
            _ => DType::FLOATS[draw.below(5) % 3],
        };
        (dtype, [Lie::Contiguous, Lie::Behind, Lie::Reversed, Lie::Part][draw.below(4)])
    };
    (0..=INTEGERS).map(&mut one).collect()
}

/// Draws numbers that a storage type represents exactly.
fn numbers(draw: &mut Draw, shape: &Shape, dtype: DType) -> Array {
    Array::from_fn(shape.clone(), |_| match dtype {
        DType::Bool => draw.below(2) as f64,
        DType::U32 => draw.below(4) as f64,
        DType::I32 => draw.below(7) as f64 - 3.0,
        _ => dtype.round(draw.unit() * 4.0 - 2.0),
    })
}

/// Returns whether every value is finite, no value is so large that rounding is amplified, and no element is at a kink or jump. Then f32
/// and f64 take the same branch, and differences approximate derivatives.
fn is_smooth(nodes: &Nodes, id: usize, values: &[Array]) -> bool {
    let node = &nodes.all[id];
    let y = &values[id];
    if y.data.iter().any(|v| !v.is_finite() || v.abs() > 30.0) {
        return false;
    }
    let near = |a: f64, b: f64| (a - b).abs() < 0.03;
    let arg = |at: usize| values[node.args[at]].expand(&node.shape);
    match node.kind {
        NodeKind::Unary(row, _) => {
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
        NodeKind::Binary(row) => match binary_of(row).name {
            "maximum" | "minimum" => arg(0).data.iter().zip(&arg(1).data).all(|(a, b)| !near(*a, *b)),
            "pow" => arg(0).data.iter().all(|a| *a > 0.3),
            "div" => arg(1).data.iter().all(|b| b.abs() > 0.3),
            _ => true,
        },
        NodeKind::Compare(_) => arg(0).data.iter().zip(&arg(1).data).all(|(a, b)| !near(*a, *b)),
        NodeKind::Reduce(ReductionKind::Max, _) => {
            let x = &values[node.args[0]];
            let y = y.expand(&x.shape);
            x.data.iter().zip(&y.data).filter(|(x, y)| near(**x, **y)).count() == node.shape.count()
        }
        _ => true,
    }
}

/// Adds a node over earlier nodes, or none if it would not be smooth.
fn grow(nodes: &mut Nodes, draw: &mut Draw, known: &[usize]) -> Option<usize> {
    let pick =
        |draw: &mut Draw| known[known.len() - 1 - draw.below(known.len()).min(draw.below(known.len()))];
    let (a, b) = (pick(draw), pick(draw));
    let made = match draw.below(20) {
        0..=8 => {
            let row = draw.below(UNARY.len());
            let mut bits = [0; 2];
            bits.iter_mut().zip(UNARY[row].scalars).for_each(|(b, s)| *b = s.1.to_bits());
            nodes.made(NodeKind::Unary(row, bits), &[a])
        }
        9..=13 => nodes.made(NodeKind::Binary(draw.below(BINARY.len())), &[a, b]),
        14 => {
            let which = draw.below(3);
            let mask = match which {
                0 => INTEGERS,
                _ => nodes.made(NodeKind::Compare(1 + draw.below(COMPARISONS.len() - 1)), &[a, b]).ok()?,
            };
            if which == 2 { Ok(mask) } else { nodes.made(NodeKind::Where, &[mask, pick(draw), a]) }
        }
        15 => {
            let number = nodes.number(draw.unit() as f32 * 4.0 - 2.0);
            nodes.made(NodeKind::Binary(draw.below(3)), &[number, a])
        }
        16 if matches!(nodes.kind(a), NodeKind::Input(_)) => {
            nodes.made(NodeKind::Cast(DType::FLOATS[draw.below(3)]), &[a])
        }
        kind => {
            let rank = nodes.shape(a).rank();
            // Mostly reduces the last axes.
            let mask = if draw.below(4) > 0 {
                (1u32 << draw.below(rank + 1)) - 1
            } else {
                draw.below(1 << rank) as u32
            };
            let how = if kind == 17 { ReductionKind::Max } else { ReductionKind::Sum };
            nodes.reduced(how, a, mask)
        }
    };
    made.ok()
}

fn batch(seed: u64) -> TreeBatch {
    let mut draw = Draw::new(seed);
    let mut nodes = Nodes::default();
    let shapes = shapes(&mut draw);
    let stored = stored(&mut draw);
    let data: Vec<Array> =
        shapes.iter().zip(&stored).map(|(s, (dtype, _))| numbers(&mut draw, s, *dtype)).collect();
    let inputs: Vec<usize> = shapes.iter().enumerate().map(|(i, s)| nodes.input(i, s)).collect();
    let mut roots = Vec::new();
    while roots.len() < BATCH {
        let mut known = inputs.clone();
        let size = 2 + draw.below(11);
        for _ in 0..4 * size {
            if known.len() >= size + inputs.len() {
                break;
            }
            let before = nodes.clone();
            let Some(id) = grow(&mut nodes, &mut draw, &known) else { continue };
            let all: Vec<usize> = (0..=id).collect();
            let values = nodes.interpret(&all, &data);
            // A selection adds its mask as well.
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
    TreeBatch { nodes, roots, data, stored }
}

fn upload(device: &Device, data: &[Array], stored: &[(DType, Lie)]) -> Vec<Tensor> {
    data.iter().zip(stored).map(|(x, (dtype, lie))| placed(device, x, *dtype, *lie).unwrap()).collect()
}

fn placed(device: &Device, x: &Array, dtype: DType, lie: Lie) -> Result<Tensor> {
    let dims = x.shape.dims();
    let rank = dims.len();
    let of = |shape: Vec<usize>, values: &[f64]| {
        if dtype.is_float() {
            let values: Vec<f32> = values.iter().map(|v| *v as f32).collect();
            return Tensor::from_f32(device, shape, &values, dtype);
        }
        if dtype == DType::I32 {
            return Tensor::from_i32(device, shape, &values.iter().map(|v| *v as i32).collect::<Vec<_>>());
        }
        let bits: Vec<u32> = values.iter().map(|v| *v as u32).collect();
        Tensor::from_u32(device, shape, &bits)?.to_dtype(dtype)
    };
    match lie {
        _ if rank == 0 || x.data.is_empty() => of(dims.to_vec(), &x.data),
        Lie::Contiguous => of(dims.to_vec(), &x.data),
        Lie::Reversed => {
            let axes: Vec<usize> = (0..rank).rev().collect();
            let turned: Vec<usize> = axes.iter().map(|a| dims[*a]).collect();
            let strides = x.shape.strides();
            let from = Array::from_fn(Shape::from(turned.clone()), |i| {
                let at = crate::array::unravel(i, &Shape::from(turned.clone()));
                x.data[(0..rank).map(|d| at[d] * strides[axes[d]]).sum::<usize>()]
            });
            of(turned, &from.data)?.permute(&axes)
        }
        Lie::Behind => {
            let n = x.data.len();
            let values = [&[7.0; 3], x.data.as_slice()].concat();
            of(vec![n + 3], &values)?.slice(0, 3..n + 3)?.reshape(dims)
        }
        Lie::Part => {
            let n = dims[rank - 1];
            let longer = [&dims[..rank - 1], &[n + 3]].concat();
            let values: Vec<f64> =
                x.data.chunks(n).flat_map(|row| [&[7.0], row, &[7.0, 7.0]].concat()).collect();
            of(longer, &values)?.slice(rank.cast_signed() - 1, 1..n + 1)
        }
    }
}

/// Compares the roots on the device with the interpreter. Returns an error for the first difference. Every third root is stored in 16 bits,
/// and comparisons as masks.
pub(super) fn compare(
    nodes: &Nodes,
    device: &Device,
    roots: &[usize],
    (data, stored): (&[Array], &[(DType, Lie)]),
    tolerance: f64,
) -> std::result::Result<(), String> {
    let expected = nodes.interpret(roots, data);
    let stored_as = |id: &usize| match nodes.kind(*id) {
        NodeKind::Compare(_) => DType::Bool,
        _ => DType::FLOATS[[0, 0, 1, 0, 0, 2][id % 6]],
    };
    let dtypes: Vec<DType> = roots.iter().map(stored_as).collect();
    let run = || run::run(nodes, device, (roots, &dtypes), &upload(device, data, stored));
    let got = no_grad(run).map_err(|e| e.to_string())?;
    for (((root, expected), got), dtype) in roots.iter().zip(expected).zip(got).zip(dtypes) {
        let tolerance = tolerance.max(if dtype == DType::F32 { 0.0 } else { dtype.epsilon() });
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

/// Compares the gradients of a weighted sum of the roots' elements with differences at some elements of each input.
fn compare_gradients(batch: &TreeBatch, device: &Device, roots: &[usize]) -> std::result::Result<(), String> {
    let mut nodes = batch.nodes.clone();
    let text = |e: crate::Error| e.to_string();
    let root = total(&mut nodes, roots).map_err(text)?;
    let mut tensors = upload(device, &batch.data, &batch.stored);
    tensors.push(Tensor::ones(device, nodes.shape(root), DType::F32).map_err(text)?);
    let floats = |i: usize| batch.stored[i].0.is_float();
    let (gradients, _, numbers) = gradient_roots(&mut nodes, root, &tensors, floats).map_err(text)?;
    let dtypes = vec![DType::F32; gradients.len()];
    let found = no_grad(|| run::run(&nodes, device, (&gradients, &dtypes), &tensors)).map_err(text)?;
    for (input, grad) in numbers.into_iter().zip(found) {
        let grad = grad.to_vec().map_err(text)?;
        let count = batch.data[input].data.len();
        let largest = grad.iter().fold(1.0f64, |m, v| m.max(f64::from(v.abs())));
        for at in (0..count).step_by(count.div_ceil(3).max(1)) {
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
    let [add, mul] = [NodeKind::Binary(binary_row("add")?), NodeKind::Binary(binary_row("mul")?)];
    let mut all = nodes.number(0.0);
    for (i, root) in roots.iter().enumerate() {
        let weight = nodes.number(1.0 / (1.0 + i as f32));
        let part = nodes.made(mul, &[*root, weight])?;
        let rank = nodes.shape(part).rank();
        let part = nodes.reduced(ReductionKind::Sum, part, (1 << rank) - 1)?;
        all = nodes.made(add, &[all, part])?;
    }
    Ok(all)
}

/// Returns the smallest failing part of a failing tree.
fn shrunk(
    batch: &TreeBatch,
    root: usize,
    check: impl Fn(usize) -> std::result::Result<(), String>,
) -> String {
    let cone = batch.nodes.cone(&[root], |_| false);
    let failing = cone
        .into_iter()
        .filter(|id| !matches!(batch.nodes.kind(*id), NodeKind::Const(_) | NodeKind::Input(_)));
    for id in failing {
        if let Err(why) = check(id) {
            return format!("{why}\n{}", show::tree(&batch.nodes, &[id]));
        }
    }
    "fails only together with other trees".into()
}

impl TreeBatch {
    fn given(&self) -> (&[Array], &[(DType, Lie)]) {
        (&self.data, &self.stored)
    }
}

pub(super) fn check(batch: &TreeBatch, device: &Device, seed: u64) {
    if let Err(why) = compare(&batch.nodes, device, &batch.roots, batch.given(), 1e-4) {
        for root in &batch.roots {
            let one = |id| compare(&batch.nodes, device, &[id], batch.given(), 1e-4);
            assert!(one(*root).is_ok(), "seed {seed}: {}", shrunk(batch, *root, one));
        }
        panic!("seed {seed}: fails only with all roots together: {why}");
    }
    // Conversions are step functions, whose derivative is defined as 1.
    let smooth = |root: &usize| {
        !batch
            .nodes
            .cone(&[*root], |_| false)
            .iter()
            .any(|id| matches!(batch.nodes.kind(*id), NodeKind::Cast(_)))
    };
    let roots: Vec<usize> = batch.roots.iter().copied().filter(smooth).collect();
    if let Err(why) = compare_gradients(batch, device, &roots) {
        for root in &roots {
            let one = |id| compare_gradients(batch, device, &[id]);
            assert!(one(*root).is_ok(), "seed {seed}: {}", shrunk(batch, *root, one));
        }
        panic!("seed {seed}: gradients fail only with all roots together: {why}");
    }
}

/// `NETCL_TEST_TREES` is the number of trees, and `NETCL_TEST_SEED` the first seed. Different seeds give different trees.
fn agree(trees: usize, devices: &[Device]) {
    let set = |name: &str| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let trees = set("NETCL_TEST_TREES").unwrap_or(trees);
    let first = set("NETCL_TEST_SEED").unwrap_or(0) as u64;
    for seed in first..first + trees.div_ceil(BATCH) as u64 {
        let batch = batch(seed);
        devices.iter().for_each(|device| check(&batch, device, seed));
    }
}

#[test]
fn random_trees_agree_with_the_interpreter() {
    agree(48, &devices());
}

/// Runs the full test on the device in `NETCL_TEST_DEVICE`; `make trees` runs it.
#[test]
#[ignore = "takes tens of minutes to build kernels"]
fn five_thousand_random_trees_agree_with_the_interpreter() {
    agree(5000, &devices()[..1]);
}
