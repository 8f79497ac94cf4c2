//! Few long rows: reductions are split into parts, and a dependent reduction waits for all parts.

use super::super::node::{NodeKind, Nodes, ReductionKind, binary_row, unary_row};
use super::random::{F32, TreeBatch, check};
use super::*;
use netcl_device::draw::Draw;
use netcl_device::fault::FaultDriver;
use netcl_device::sim::SimDriver;
use netcl_kernel::Programs;

/// Adds a chain of elementwise values and reductions, in which every reduction depends on the one before.
fn chain(nodes: &mut Nodes, draw: &mut Draw, x: usize, reductions: usize) -> Result<usize> {
    let unary = |name: &str, s: f32| Ok(NodeKind::Unary(unary_row(name)?, [s.to_bits(), 0]));
    let n = nodes.shape(x).count() as f32;
    let mut v = x;
    for _ in 0..reductions {
        // Reduces the row, or all rows.
        let mask = if draw.below(4) == 0 { 0b11 } else { 0b01 };
        let (how, scale) =
            if draw.below(3) == 0 { (ReductionKind::Max, 1.0) } else { (ReductionKind::Sum, 4.0 / n) };
        let reduced = nodes.reduced(how, v, mask)?;
        let reduced = nodes.made(unary("mul_scalar", scale)?, &[reduced])?;
        let moved = match draw.below(3) {
            0 => nodes.made(NodeKind::Binary(binary_row("sub")?), &[v, reduced])?,
            1 => {
                let factor = nodes.made(unary("tanh", 0.0)?, &[reduced])?;
                let factor = nodes.made(unary("add_scalar", 1.5)?, &[factor])?;
                nodes.made(NodeKind::Binary(binary_row("mul")?), &[v, factor])?
            }
            _ => nodes.made(NodeKind::Binary(binary_row("add")?), &[v, reduced])?,
        };
        let after = ["tanh", "sigmoid", "exp", "square"][draw.below(4)];
        let bounded = nodes.made(unary("tanh", 0.0)?, &[moved])?;
        v = nodes.made(unary(after, 0.0)?, &[bounded])?;
    }
    Ok(v)
}

/// Builds chains over one input. Each is a root as a whole, as a sum of each row, or as one number.
fn drawn(seed: u64, lengths: std::ops::Range<usize>) -> TreeBatch {
    let mut draw = Draw::new(seed);
    let (rows, n) = (1 + draw.below(3), lengths.start + draw.below(lengths.len()));
    let mut nodes = Nodes::default();
    let shape = Shape::from([rows, n]);
    let x = nodes.input(0, &shape);
    let mut data = Array::from_fn(shape, |_| draw.unit() - 0.5);
    // A maximum far above the rest, in the last part of its row, so that its gradient is well defined.
    (0..rows).for_each(|row| data.data[row * n + n - 1 - draw.below(n / 16)] = 2.0 + row as f64 / 4.0);
    let mut roots = Vec::new();
    for _ in 0..2 {
        let reductions = 2 + draw.below(3);
        let v = chain(&mut nodes, &mut draw, x, reductions).unwrap();
        roots.push(match draw.below(3) {
            0 => v,
            at => {
                let sum = nodes.reduced(ReductionKind::Sum, v, if at == 1 { 0b01 } else { 0b11 }).unwrap();
                let mean = NodeKind::Unary(unary_row("mul_scalar").unwrap(), [(1.0 / n as f32).to_bits(), 0]);
                nodes.made(mean, &[sum]).unwrap()
            }
        });
    }
    TreeBatch { nodes, roots, data: vec![data], stored: vec![F32] }
}

#[test]
fn dependent_reductions_of_long_rows_agree_with_the_interpreter() {
    let [device, sim] = devices();
    for seed in 0..4 {
        check(&drawn(seed, 16_384..300_000), &device, seed);
    }
    for seed in 4..6 {
        check(&drawn(seed, 16_384..24_000), &sim, seed);
    }
}

/// Runs the same test with many seeds.
#[test]
#[ignore = "takes minutes to build kernels"]
fn two_hundred_trees_of_dependent_reductions_agree_with_the_interpreter() {
    for seed in 100..300 {
        check(&drawn(seed, 16_384..300_000), &test_device().unwrap(), seed);
    }
}

/// Reduces a row of zeros that ends with 5, for lengths below and above the limit for splitting rows.
#[test]
fn logsumexp_of_a_long_row_is_exact() {
    for device in devices() {
        for n in [16_383, 16_384, 50_001] {
            let mut data = vec![0.0; n];
            data[n - 1] = 5.0;
            let x = Tensor::from_f32(&device, [1, n], &data, DType::F32).unwrap();
            let exact = ((n as f64 - 1.0) + 5f64.exp()).ln() as f32;
            let got = x.logsumexp(-1).unwrap().to_vec().unwrap()[0];
            assert!((got - exact).abs() < 1e-4, "{n} columns: {got}, expected {exact}");
            let soft = fuse(&[&x], |t| t[0].softmax()?.sum(&[-1])).unwrap().to_vec().unwrap()[0];
            assert!((soft - 1.0).abs() < 1e-4, "{n} columns: a softmax sums to {soft}");
        }
    }
}

/// Runs a kernel of long rows on a driver whose kernels start with small groups only. Kernels with large groups are built again with their size.
#[test]
fn kernels_that_use_many_registers_are_built_for_their_groups() {
    let inner = Box::new(SimDriver::open("sim", &Settings::default().sim).unwrap());
    let driver = FaultDriver::new(inner, Default::default()).limit_groups(64);
    let settings = Settings { cache_dir: None, ..Settings::default() };
    let device = Device::from_driver(Box::new(driver), settings);
    let programs = Programs::of(&device);
    for (n, groups) in [(64, 0), (8192, 1)] {
        let x = Tensor::from_f32(&device, [2, n], &ramp(2 * n), DType::F32).unwrap();
        programs.start_recording();
        let soft = fuse(&[&x], |t| t[0].softmax()).unwrap();
        let orders = programs.stop_recording();
        let sized =
            orders.iter().filter(|o| o.source.contains("__kernel __attribute__((reqd_work_group_size("));
        assert_eq!(sized.count(), groups, "{n} columns");
        let expected = x.softmax(-1).unwrap().to_vec().unwrap();
        let off = soft.to_vec().unwrap().iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < 1e-6, "{n} columns: off by {off}");
    }
}

/// Reduces more rows than a GPU with few compute units needs, and fewer than an H200 has compute units.
#[test]
fn rows_of_a_vocabulary_are_exact_on_a_large_card() {
    let device = Device::open("sim:h200", &Settings::default()).unwrap();
    let (rows, n) = (3, 32_000);
    let data: Vec<f32> = (0..rows * n).map(|i| (i * 37 % 1009) as f32 / 100.0).collect();
    let x = Tensor::from_f32(&device, [rows, n], &data, DType::F32).unwrap();
    let got = x.logsumexp(-1).unwrap().to_vec().unwrap();
    for (row, got) in data.chunks(n).zip(got) {
        let exact = row.iter().map(|v| f64::from(*v).exp()).sum::<f64>().ln() as f32;
        assert!((got - exact).abs() < 1e-5, "{got}, expected {exact}");
    }
}

/// Computes a sum over columns that depends on another one, together with sums over rows of the same elements.
#[test]
fn dependent_sums_of_columns_agree_with_single_ops() {
    type Single = fn(&Tensor, &Tensor) -> Result<Tensor>;
    type Tree = fn(&[Expr]) -> Result<Expr>;
    let single: Single = |x, w| {
        let d = x.sub(&x.mean(&[0], true)?)?;
        let d = d.mul(&d.square()?.mean(&[0], true)?.add_scalar(0.1)?.rsqrt()?)?;
        let d = d.mul(&d.abs()?.mean(&[0], true)?)?;
        d.mul(w)?.softmax(-1)?.mul(&d)
    };
    let tree: Tree = |t| {
        let d = t[0].sub(&t[0].mean(&[0])?)?;
        let d = d.mul(&d.square()?.mean(&[0])?.add_scalar(0.1)?.rsqrt()?)?;
        let d = d.mul(&d.abs()?.mean(&[0])?)?;
        d.mul(&t[1])?.softmax()?.mul(&d)
    };
    for device in devices() {
        for rows in [40, 600] {
            let x = Tensor::from_f32(&device, [rows, 64], &ramp(rows * 64), DType::F32).unwrap();
            let w = Tensor::from_f32(&device, [64], &ramp(64), DType::F32).unwrap();
            agree(&format!("{rows} rows"), [&x, &w], &single, &tree);
        }
    }
}

/// Generated kernels declare that results do not share memory with inputs, so such a call is rejected.
#[test]
fn a_tree_is_not_computed_over_its_input() {
    let device = test_device().unwrap();
    let (nodes, root) = tree(&[&[64]], |t| t[0].exp()?.add(&t[0].sum(&[])?));
    let x = Tensor::from_f32(&device, [64], &ramp(64), DType::F32).unwrap();
    let y = Tensor::zeros(&device, [64], DType::F32).unwrap();
    let into = |y: &Tensor| run::run_into(&nodes, &device, (&[root], std::slice::from_ref(y)), &[x.detach()]);
    assert!(into(&x).unwrap_err().message().contains("shares memory with an input"));
    into(&y).unwrap();
    assert_eq!(x.to_vec().unwrap(), ramp(64));
}
