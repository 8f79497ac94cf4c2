use super::node::NodeKind;
use super::plan::{PlanStep, Walks, plan};
use super::*;
use crate::Device;
use crate::array::Array;
use crate::graph::Graph;
use crate::ops::elementwise::{BINARY, UNARY};
use crate::suite::test_device;
use netcl_device::Settings;

mod columns;
mod long;
mod random;

fn devices() -> [Device; 2] {
    [test_device().unwrap(), Device::open("sim", &Settings::default()).unwrap()]
}

fn steps(nodes: &Nodes, root: usize) -> Vec<PlanStep> {
    plan(nodes, &[root], &Walks { few: &|_, _| false, columns: &|_, _| true })
}

/// Builds a tree over inputs of these shapes.
fn tree(shapes: &[&[usize]], f: impl FnOnce(&[Expr]) -> Result<Expr>) -> (Nodes, usize) {
    let nodes = Rc::new(RefCell::new(Nodes::default()));
    let given: Vec<Expr> =
        shapes.iter().enumerate().map(|(i, s)| Expr::input(&nodes, i, &Shape::from(*s))).collect();
    let root = f(&given).unwrap().of(&nodes).unwrap();
    let nodes = nodes.borrow().clone();
    (nodes, root)
}

#[test]
fn equal_terms_are_one_node_and_constants_are_computed() {
    let (nodes, root) = tree(&[&[4]], |t| {
        let two = t[0].number(0.5).add(&t[0].number(1.5))?.sqrt()?.square()?;
        let twice = t[0].exp()?.add(&t[0].exp()?)?;
        twice.mul(&two.div(&two)?)?.neg()?.neg()
    });
    let cone = nodes.cone(&[root], |_| false);
    let kinds: Vec<String> = cone.iter().map(|id| nodes.kind(*id).name()).collect();
    assert_eq!(kinds, ["x0", "exp", "add"]);
}

#[test]
fn trees_are_one_kernel_unless_axes_differ() {
    let count = |f: fn(&[Expr]) -> Result<Expr>| {
        let (nodes, root) = tree(&[&[4, 8], &[8]], f);
        steps(&nodes, root).len()
    };
    assert_eq!(count(|t| t[0].mul(&t[1])?.gelu()?.add_scalar(1.0)), 1);
    assert_eq!(count(|t| t[0].softmax()), 1);
    assert_eq!(
        count(|t| t[0]
            .sub(&t[0].mean(&[-1])?)?
            .mul(&t[0].variance(&[-1])?.add_scalar(1e-5)?.rsqrt()?)?
            .mul(&t[1])),
        1
    );
    assert_eq!(count(|t| t[0].square()?.sum(&[])), 1);
    // The sum over rows needs a separate kernel, after the kernel for its terms.
    assert_eq!(count(|t| t[0].exp()?.sum(&[0])), 2);
    assert_eq!(count(|t| t[0].exp()?.sum(&[0])?.add(&t[0].sum(&[1])?)), 3);
    // With many columns, one kernel walks down the columns and computes the terms.
    let (nodes, root) = tree(&[&[4, 32]], |t| t[0].exp()?.sum(&[0]));
    assert_eq!(steps(&nodes, root).len(), 1);
    // A row's softmax that is broadcast to more rows.
    assert_eq!(count(|t| t[1].softmax()?.mul(&t[0])), 2);
}

#[test]
fn a_tree_is_shown_with_its_source() {
    let device = test_device().unwrap();
    let x = Tensor::ones(&device, [3, 5], DType::F32).unwrap();
    let text = explain(&[&x], |t| t[0].mul_scalar(2.0)?.sum(&[-1])).unwrap();
    for part in [
        "v1 = mul_scalar(v0, 2.0)  [3, 5]",
        "v2 = sum(v1, axes [-1])  [3, 1]",
        "__kernel void fused_",
        "# gradient",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let e = fuse(&[&x], |t| t[0].add(&t[0].sum(&[0])?.expand([4])?)).unwrap_err();
    assert!(e.message().starts_with("expand: "), "{e}");
}

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect()
}

/// Compares trees with the same computation in single ops, forward and backward, in every storage type.
#[test]
fn norms_and_softmax_agree_with_single_ops() {
    type Single = fn(&Tensor, &Tensor) -> Result<Tensor>;
    type Tree = fn(&[Expr]) -> Result<Expr>;
    let pairs: [(Single, Tree); 4] = [
        (|x, w| x.softmax(-1)?.mul(w), |t| t[0].softmax()?.mul(&t[1])),
        (
            |x, w| {
                let d = x.sub(&x.mean(&[-1], true)?)?;
                d.mul(&d.square()?.mean(&[-1], true)?.add_scalar(1e-3)?.rsqrt()?)?.mul(w)
            },
            |t| {
                let d = t[0].sub(&t[0].mean(&[-1])?)?;
                d.mul(&t[0].variance(&[-1])?.add_scalar(1e-3)?.rsqrt()?)?.mul(&t[1])
            },
        ),
        (|x, w| x.mul(w)?.max(&[-1], true), |t| t[0].mul(&t[1])?.max(&[-1])),
        (|x, w| x.mul(w)?.square()?.sum(&[], true)?.reshape([1, 1]), |t| t[0].mul(&t[1])?.square()?.sum(&[])),
    ];
    for device in devices() {
        for n in [64, 77] {
            for dtype in DType::FLOATS {
                for (at, (single, tree)) in pairs.iter().enumerate() {
                    let x = Tensor::from_f32(&device, [6, n], &ramp(6 * n), dtype).unwrap();
                    let w = Tensor::from_f32(&device, [n], &ramp(n), dtype).unwrap();
                    agree(&format!("tree {at}, {dtype}, n {n}"), [&x, &w], single, tree);
                }
            }
        }
    }
}

/// Compares single ops in f32 with the tree in the inputs' type.
fn agree(
    what: &str,
    [x, w]: [&Tensor; 2],
    single: &fn(&Tensor, &Tensor) -> Result<Tensor>,
    tree: &fn(&[Expr]) -> Result<Expr>,
) {
    let dtype = x.dtype();
    let wide = |t: &Tensor| t.to_dtype(DType::F32).unwrap();
    let (a, b) = (wide(x).parameter("x"), wide(w).parameter("w"));
    let (c, d) = (x.parameter("x"), w.parameter("w"));
    let (y, z) = (single(&a, &b).unwrap(), fuse(&[&c, &d], tree).unwrap());
    let dy = Tensor::from_f32(x.device(), y.shape(), &ramp(y.count()), dtype).unwrap();
    y.backward_with(&wide(&dy)).unwrap();
    z.backward_with(&dy).unwrap();
    let tensors = [(y, z), (a.grad().unwrap(), c.grad().unwrap()), (b.grad().unwrap(), d.grad().unwrap())];
    for (i, (e, g)) in tensors.iter().enumerate() {
        assert_eq!((e.shape(), dtype), (g.shape(), g.dtype()));
        let (e, g) = (e.to_vec().unwrap(), g.to_vec().unwrap());
        let largest = e.iter().fold(1.0f32, |m, v| m.max(v.abs()));
        let allowed = if dtype == DType::F32 { 1e-5 } else { 2.0 * dtype.epsilon() as f32 } * largest;
        for (k, (e, g)) in e.iter().zip(&g).enumerate() {
            assert!((e - g).abs() <= allowed, "{what}, tensor {i} [{k}]: {g}, expected {e}");
        }
    }
}

/// A long row is split into parts. Sums of small integers are exact.
#[test]
fn long_rows_in_parts_are_exact() {
    for device in devices() {
        let n = 70_001;
        let data: Vec<f32> = (0..n).map(|i| (i % 7) as f32 - 3.0).collect();
        let x = Tensor::from_f32(&device, [n], &data, DType::F32).unwrap();
        let y = fuse(&[&x], |t| t[0].mul_scalar(2.0)?.sum(&[])?.add(&t[0].max(&[])?)).unwrap();
        let expected = data.iter().map(|v| 2.0 * v).sum::<f32>() + 3.0;
        assert_eq!(y.to_vec().unwrap(), [expected]);
    }
}

#[test]
fn a_nan_stays_in_a_maximum() {
    for device in devices() {
        for at in [0, 3, 36, 68] {
            let mut data = vec![1.0; 2 * 69];
            data[69 + at] = f32::NAN;
            let x = Tensor::from_f32(&device, [2, 69], &data, DType::F32).unwrap();
            let y = fuse(&[&x], |t| t[0].max(&[-1])).unwrap().to_vec().unwrap();
            assert!(y[0] == 1.0 && y[1].is_nan(), "{at}: {y:?}");
        }
    }
}

/// Fuses views, integer masks, axes in the middle, and images with a bias per channel.
#[test]
fn operands_lie_anyhow() {
    for device in devices() {
        let x = Tensor::from_f32(&device, [2, 3, 4, 5], &ramp(120), DType::F32).unwrap();
        let bias = Tensor::from_f32(&device, [3, 1, 1], &[1.0, -2.0, 3.0], DType::F32).unwrap();
        let mask = Tensor::from_u32(&device, [5], &[0, 1, 0, 2, 1]).unwrap();
        let view = x.permute(&[0, 1, 3, 2]).unwrap();
        let fused = fuse(&[&view, &x, &bias, &mask], |t| {
            let a = t[1].add(&t[2])?;
            let kept = t[3].where_cond(&a, &t[1])?;
            kept.mul(&kept.sum(&[-3, -2, -1])?)?.add(&t[0].sum(&[-1, -2])?)
        })
        .unwrap();
        let a = x.add(&bias).unwrap();
        let kept = mask.where_cond(&a, &x).unwrap();
        let expected = kept
            .mul(&kept.sum(&[1, 2, 3], true).unwrap())
            .unwrap()
            .add(&view.sum(&[2, 3], true).unwrap())
            .unwrap();
        let (got, expected) = (fused.to_vec().unwrap(), expected.to_vec().unwrap());
        for (g, e) in got.iter().zip(&expected) {
            assert!((g - e).abs() <= 1e-4 * e.abs().max(1.0), "{g}, expected {e}");
        }
        let empty = Tensor::zeros(&device, [3, 0], DType::F32).unwrap();
        assert_eq!(fuse(&[&empty], |t| t[0].exp()?.sum(&[-1])).unwrap().to_vec().unwrap(), [0.0; 3]);
        assert_eq!(fuse(&[&empty], |t| t[0].exp()).unwrap().count(), 0);
    }
}

/// Compares every row with its f64 function by name, which also checks the generated expressions.
#[test]
fn every_row_can_be_in_a_tree() {
    for device in devices() {
        let nodes = Rc::new(RefCell::new(Nodes::default()));
        let shape = Shape::from([37]);
        let [x, y] = [0, 1].map(|i| Expr::input(&nodes, i, &shape));
        let mut roots = Vec::new();
        for row in UNARY {
            let scalars: Vec<f32> = row.scalars.iter().map(|s| s.1).collect();
            roots.push(x.unary(row.name, &scalars).unwrap());
        }
        roots.extend(BINARY.iter().map(|row| x.binary(row.name, &y).unwrap()));
        roots.extend([x.lt(&y), x.le(&y), x.eq(&y), x.gt(&y)].map(Result::unwrap));
        let ids: Vec<usize> = roots.iter().map(|e| e.of(&nodes).unwrap()).collect();
        let data = [
            Array::from_fn(shape.clone(), |i| f64::from(0.3f32 + i as f32 / 32.0)),
            Array::from_fn(shape.clone(), |i| f64::from(1.0f32 - i as f32 / 64.0)),
        ];
        let nodes = nodes.borrow();
        random::compare(&nodes, &device, &ids, (&data, &[random::F32; 2]), 2e-5).unwrap();
    }
}

/// A captured tree, forward and backward, uses the current contents of its input.
#[test]
fn trees_replay() {
    let device = test_device().unwrap();
    let x = Tensor::zeros(&device, [4, 33], DType::F32).unwrap();
    let step = || -> Result<(Tensor, Tensor)> {
        let leaf = x.parameter("x");
        let y = fuse(&[&leaf], |t| t[0].softmax()?.mul(&t[0])?.sum(&[]))?;
        y.backward()?;
        Ok((y, leaf.grad().ok_or_else(|| Error::internal("no gradient"))?))
    };
    let (graph, (y, grad)) = Graph::capture(&device, step).unwrap();
    x.set_f32(&ramp(132)).unwrap();
    let expected = step().unwrap();
    graph.replay().unwrap();
    assert_eq!(y.to_bytes().unwrap(), expected.0.to_bytes().unwrap());
    assert_eq!(grad.to_bytes().unwrap(), expected.1.to_bytes().unwrap());
}

/// Scalars are arguments: other values give the same source and their own results.
#[test]
fn other_scalars_build_nothing() {
    for device in devices() {
        let x = Tensor::from_f32(&device, [3, 37], &ramp(111), DType::F32).unwrap();
        let tree =
            |by: f32| move |t: &[Expr]| t[0].mul_scalar(by)?.clamp(-by, by)?.add(&t[0].number(3.0 * by));
        let texts: Vec<String> = [1.5, 0.3].iter().map(|by| explain(&[&x], tree(*by)).unwrap()).collect();
        let name =
            |text: &str| text.split_once("__kernel void ").unwrap().1.split_once('(').unwrap().0.to_owned();
        assert_eq!(name(&texts[0]), name(&texts[1]));
        for by in [1.5f32, 0.3, -0.0, 1e30] {
            let got = fuse(&[&x], tree(by)).unwrap().to_vec().unwrap();
            for (x, y) in ramp(111).iter().zip(got) {
                assert_eq!(y, (x * by).clamp(-by.abs(), by.abs()) + 3.0 * by, "{by}");
            }
        }
    }
}

/// Folded constants equal the values that kernels compute, including special values.
#[test]
fn constants_fold_to_what_kernels_compute() {
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1.0, -2.5, 30.0, 1e-3];
    let pairs: Vec<[f32; 2]> = special.iter().flat_map(|a| special.map(|b| [*a, b])).collect();
    let shape = Shape::from([pairs.len()]);
    let mut nodes = Nodes::default();
    let [x, y] = [0, 1].map(|i| nodes.input(i, &shape));
    let mut kinds: Vec<NodeKind> =
        (0..BINARY.len()).map(NodeKind::Binary).chain((0..3).map(NodeKind::Compare)).collect();
    kinds.extend(UNARY.iter().enumerate().map(|(row, unary)| {
        let mut bits = [0; 2];
        bits.iter_mut().zip(unary.scalars).for_each(|(b, s)| *b = s.1.to_bits());
        NodeKind::Unary(row, bits)
    }));
    let args = |kind: &NodeKind| if matches!(kind, NodeKind::Unary(..)) { vec![x] } else { vec![x, y] };
    let roots: Vec<usize> = kinds.iter().map(|kind| nodes.made(*kind, &args(kind)).unwrap()).collect();
    let device = test_device().unwrap();
    let inputs = [0, 1].map(|i| {
        let column: Vec<f32> = pairs.iter().map(|pair| pair[i]).collect();
        Tensor::from_f32(&device, shape.clone(), &column, DType::F32).unwrap()
    });
    let dtypes = vec![DType::F32; roots.len()];
    let computed = crate::no_grad(|| run::run(&nodes, &device, (&roots, &dtypes), &inputs)).unwrap();
    for (kind, computed) in kinds.iter().zip(computed) {
        for (pair, computed) in pairs.iter().zip(computed.to_vec().unwrap()) {
            let numbers = pair.map(|v| nodes.number(v));
            let folded = nodes.made(*kind, &numbers[..args(kind).len()]).unwrap();
            let NodeKind::Const(bits) = nodes.kind(folded) else { panic!("{} did not fold", kind.name()) };
            let folded = f32::from_bits(bits);
            let near = (folded - computed).abs() <= 1e-5 * folded.abs().max(1e-3);
            let same = folded == computed || folded.is_nan() && computed.is_nan();
            assert!(near || same, "{} of {pair:?}: folded {folded}, computed {computed}", kind.name());
        }
    }
}

/// Reduces leading and middle axes that are wide enough for a kernel that walks down columns. NaN is preserved.
#[test]
fn columns_are_reduced_in_one_walk() {
    for device in devices() {
        for (dims, axis) in [([1, 300, 70], 1), ([3, 40, 64], 1), ([50, 5, 16], 0), ([2, 2100, 33], 1)] {
            let n: usize = dims.iter().product();
            let mut data = ramp(n);
            data[n / 2] = f32::NAN;
            let clean: Vec<f32> = data.iter().map(|v| if v.is_nan() { 0.25 } else { *v }).collect();
            let x = Tensor::from_f32(&device, dims, &clean, DType::F32).unwrap();
            let bad = Tensor::from_f32(&device, dims, &data, DType::F32).unwrap();
            let sum = fuse(&[&x], |t| t[0].square()?.sum(&[axis])).unwrap().to_vec().unwrap();
            let expected = x.square().unwrap().sum(&[axis], true).unwrap().to_vec().unwrap();
            for (g, e) in sum.iter().zip(&expected) {
                assert!((g - e).abs() <= 1e-5 * e.abs().max(1.0), "{dims:?}: {g}, expected {e}");
            }
            let top = fuse(&[&bad], |t| t[0].mul_scalar(2.0)?.max(&[axis])).unwrap().to_vec().unwrap();
            let expected = bad.mul_scalar(2.0).unwrap().max(&[axis], true).unwrap().to_vec().unwrap();
            assert_eq!(top.iter().filter(|v| v.is_nan()).count(), 1);
            assert!(top.iter().zip(&expected).all(|(g, e)| g == e || g.is_nan() && e.is_nan()), "{dims:?}");
        }
    }
}

/// Every value that the tuner may try gives correct results, for each class of kernels of a tree.
#[test]
fn tuned_values_are_all_right() {
    use netcl_kernel::tune::Tuning;
    let device = Device::open("sim", &Settings::default()).unwrap();
    let tuning = Tuning::of(&device);
    let tree = |t: &[Expr]| t[0].softmax()?.mul(&t[1])?.sum(&[0])?.add(&t[1].mul_scalar(3.0)?.exp()?);
    let (x, w) = (ramp(40 * 96), ramp(96));
    let arrays = [
        Array::from_fn(Shape::from([40, 96]), |i| f64::from(x[i])),
        Array::from_fn(Shape::from([96]), |i| f64::from(w[i])),
    ];
    let expected = reference(&[&arrays[0], &arrays[1]], tree).unwrap();
    let x = Tensor::from_f32(&device, [40, 96], &x, DType::F32).unwrap();
    let w = Tensor::from_f32(&device, [96], &w, DType::F32).unwrap();
    tuning.start_recording();
    fuse(&[&x, &w], tree).unwrap();
    let classes: Vec<u64> =
        tuning.stop_recording().tuned.iter().filter(|(name, _)| *name == "fused").map(|t| t.1).collect();
    assert!(classes.len() >= 3, "{classes:?}");
    for params in tuning.candidates("fused").into_iter().step_by(7) {
        classes.iter().for_each(|class| tuning.try_out("fused", *class, Some(params.clone())));
        let got = fuse(&[&x, &w], tree).unwrap().to_vec().unwrap();
        for (got, expected) in got.iter().zip(&expected.data) {
            assert!(
                (f64::from(*got) - expected).abs() <= 1e-5 * expected.abs(),
                "{params:?}: {got}, {expected}"
            );
        }
    }
}

/// Covers cases that random trees avoid: bases near 0, at 0 and below 0, with integer exponents. Compares the gradients of a power with f64
/// formulas. The exponent's gradient is 0 for base 0, and does not exist for negative bases.
#[test]
fn powers_of_small_and_negative_bases_have_their_gradients() {
    let mut draw = crate::Generator::new(77);
    let count = 240;
    let unit = draw.uniform(count, 0.0, 1.0);
    let bases: Vec<f32> = (0..count)
        .map(|i| match i % 4 {
            0 => 0.3 * unit[i],
            1 => -2.0 * unit[i] - 0.01,
            2 => 0.0,
            _ => 1e-3 * (unit[i] - 0.5),
        })
        .collect();
    let exponents: Vec<f32> = (0..count).map(|i| [1.0, 2.0, 3.0, 4.0, 0.0][i / 4 % 5]).collect();
    for device in devices() {
        let tensor = |data: &[f32]| Tensor::from_f32(&device, [count], data, DType::F32).unwrap();
        let (x, b) = (tensor(&bases).parameter("x"), tensor(&exponents).parameter("b"));
        let y = lazy(|| x.pow(&b)?.mul(&b)).unwrap();
        y.backward_with(&Tensor::ones(&device, [count], DType::F32).unwrap()).unwrap();
        let got = [&x, &b].map(|leaf| leaf.grad().unwrap().to_vec().unwrap());
        let near = |g: f32, e: f64| (f64::from(g) - e).abs() <= 1e-5 * e.abs().max(1e-3);
        for i in 0..count {
            let (x, b) = (f64::from(bases[i]), f64::from(exponents[i]));
            let dx = if b == 0.0 { 0.0 } else { b * b * x.powf(b - 1.0) };
            assert!(near(got[0][i], dx), "{x}^{b}: dx {}, expected {dx}", got[0][i]);
            // d (b x^b) / db
            let db = x.powf(b) + if x == 0.0 { 0.0 } else { b * x.powf(b) * x.ln() };
            let same = if db.is_nan() { got[1][i].is_nan() } else { near(got[1][i], db) };
            assert!(same, "{x}^{b}: db {}, expected {db}", got[1][i]);
        }
    }
}
