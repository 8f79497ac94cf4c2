//! Ops after a convolution become part of its kernel, and trees over images keep the layout of convolutions.

use super::epilogues::without_expressions;
use super::{close, counted, tensor};
use crate::graph::Graph;
use crate::ops::batch_norm::{Running, batch_norm_inference};
use crate::ops::conv::{Conv2dOptions, conv2d};
use crate::suite::test_device;
use crate::{DType, Device, Result, Settings, Tensor, lazy, no_grad, unfused};

/// Returns devices for the CPU's kernels, and for the portable GPU kernels with all checks of the simulated GPU.
fn devices() -> Vec<(&'static str, Device)> {
    let sim = |kernel: &str| {
        let mut settings = Settings { prefer: vec![kernel.into()], ..Settings::default() };
        settings.sim.check = vec!["all".into()];
        Device::open("sim", &settings).unwrap()
    };
    let test = test_device().unwrap();
    let winograd = Settings { prefer: vec!["conv_winograd".into()], ..Settings::default() };
    let winograd = Device::open(&test.capabilities().id, &winograd).unwrap();
    [("test", test), ("conv_winograd", winograd)]
        .into_iter()
        .chain(["conv_tile", "conv_gemm", "conv_depthwise"].map(|name| (name, sim(name))))
        .collect()
}

type Tree = fn(&Tensor, &[Tensor]) -> Result<Tensor>;

/// Trees over a convolution and: an image of its shape, scale and shift of its channels, a scalar.
const TREES: [Tree; 5] = [
    |y, _| y.relu(),
    |y, t| y.mul(&t[1])?.add(&t[2])?.relu(),
    |y, t| y.mul(&t[1])?.add(&t[0])?.relu(),
    |y, t| y.add_scalar(0.25)?.silu()?.mul(&t[3])?.add(&y.tanh()?),
    |y, t| t[2].sub(y)?.clamp(-0.5, 0.5)?.mul_scalar(3.0),
];

/// Batch, channels per group, output channels per group, groups, side, taps and options.
type Case = ([usize; 4], usize, usize, Conv2dOptions);

fn cases() -> Vec<Case> {
    let plain = Conv2dOptions::default();
    vec![
        ([2, 3, 8, 1], 6, 3, plain.padding(1)),
        // These shapes have partial panels and vectors, and several groups.
        ([1, 4, 19, 1], 7, 3, plain.stride(2)),
        ([1, 2, 3, 2], 5, 2, plain.groups(2)),
        // Depthwise, with whole and partial vectors, and a product.
        ([1, 1, 1, 20], 5, 3, plain.padding(1).groups(20)),
        ([2, 5, 9, 1], 4, 1, plain),
        // These shapes have whole vectors of channels, and partial tiles.
        ([2, 16, 32, 1], 7, 3, plain.padding(1)),
    ]
}

/// Returns x, w, bias, and the other inputs of [`TREES`].
fn leaves(device: &Device, (sizes, side, taps, options): &Case, dtype: DType) -> Vec<Tensor> {
    let [n, c, o, groups] = *sizes;
    let places = |i: usize| (side + 2 * options.padding[i] - taps) / options.stride[i] + 1;
    let (all, shape) = (o * groups, [n, o * groups, places(0), places(1)]);
    let dims: [&[usize]; 7] = [
        &[n, c * groups, *side, *side],
        &[all, c, *taps, *taps],
        &[all],
        &shape,
        &[1, all, 1, 1],
        &[all, 1, 1],
        &[1],
    ];
    let made = dims.iter().enumerate().map(|(i, dims)| tensor(device, dims, i as f32 * 0.3));
    made.map(|x| x.to_dtype(dtype).unwrap().parameter("x")).collect()
}

#[test]
fn what_follows_a_convolution_is_part_of_its_kernel() {
    for (name, device) in devices() {
        for case in &cases() {
            for (at, tree) in TREES.iter().enumerate() {
                let (e, l) = (leaves(&device, case, DType::F32), leaves(&device, case, DType::F32));
                let convolved = |t: &[Tensor]| conv2d(&t[0], &t[1], Some(&t[2]), case.3);
                let (y, plain) = counted(&device, || convolved(&e).unwrap());
                let expected = tree(&y, &e[3..]).unwrap();
                let dy = tensor(&device, expected.dims(), 2.0);
                expected.backward_with(&dy).unwrap();
                let (got, launches) = counted(&device, || lazy(|| tree(&convolved(&l)?, &l[3..])).unwrap());
                // The image keeps its own layout. A kernel reads only inputs in the layout of the result.
                let apart = u64::from(at == 2) + without_expressions(&device);
                assert!(launches <= plain + apart, "{name}: tree {at} of {case:?}: {launches} for {plain}");
                close(&got, &expected);
                assert_eq!(got.layout().strides, y.layout().strides, "{name}: tree {at} of {case:?}");
                got.backward_with(&dy).unwrap();
                for (i, (l, e)) in l.iter().zip(&e).enumerate() {
                    match (l.grad(), e.grad()) {
                        (Some(l), Some(e)) => close(&l, &e),
                        (l, e) => assert_eq!(l.is_some(), e.is_some(), "{name}: tree {at} of {case:?}: {i}"),
                    }
                }
            }
        }
    }
}

#[test]
fn narrow_results_are_rounded_once() {
    for (name, device) in devices() {
        for dtype in [DType::F16, DType::Bf16] {
            for case in &cases() {
                let narrow = leaves(&device, case, dtype);
                let wide: Vec<Tensor> = narrow.iter().map(|x| x.to_dtype(DType::F32).unwrap()).collect();
                let run = |t: &[Tensor]| TREES[3](&conv2d(&t[0], &t[1], Some(&t[2]), case.3)?, &t[3..]);
                let (expected, got) = (run(&wide).unwrap(), lazy(|| run(&narrow)).unwrap());
                let allowed = 1.5 * dtype.epsilon() as f32;
                for (g, e) in got.to_vec().unwrap().iter().zip(expected.to_vec().unwrap()) {
                    assert!((g - e).abs() <= allowed * e.abs().max(1.0), "{name} {dtype}: {g}, expected {e}");
                }
            }
        }
    }
}

/// Convolution, batch norm with running statistics, and activation are one kernel in every storage type, with the rounding of the single
/// ops.
#[test]
fn a_batch_norm_for_inference_is_part_of_its_convolution() {
    for (name, device) in devices() {
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            let case = &cases()[1];
            let t = leaves(&device, case, dtype);
            let channels = t[2].count();
            let of = |first: f32| tensor(&device, &[channels], first).square().unwrap();
            let running = Running { mean: of(0.1), variance: of(0.7) };
            let convolved = || conv2d(&t[0], &t[1], None, case.3);
            let step =
                || no_grad(|| batch_norm_inference(&convolved()?, &t[2], &t[2], &running, 1e-5)?.relu());
            let expected = step().unwrap();
            let (_, plain) = counted(&device, || no_grad(convolved).unwrap());
            let (got, launches) = counted(&device, || lazy(step).unwrap());
            assert_eq!(launches, plain, "{name} {dtype}");
            assert_eq!(got.layout().strides, expected.layout().strides);
            let allowed = 2.0 * dtype.epsilon() as f32;
            for (g, e) in got.to_vec().unwrap().iter().zip(expected.to_vec().unwrap()) {
                assert!((g - e).abs() <= allowed * e.abs().max(1.0), "{name} {dtype}: {g}, expected {e}");
            }
        }
    }
}

/// A block of a residual network. The added branch has the layout of the result and is part of the last kernel.
fn block(x: &Tensor, w: &[Tensor], scale: &Tensor) -> Result<Tensor> {
    let options = Conv2dOptions::default().padding(1);
    let y = conv2d(x, &w[0], None, options)?.mul(scale)?.relu()?;
    conv2d(&y, &w[1], None, options)?.mul(scale)?.add(x)?.relu()
}

#[test]
fn a_residual_block_is_its_convolutions() {
    let device = test_device().unwrap();
    let x = tensor(&device, &[2, 6, 6, 8], 0.0).permute(&[0, 3, 1, 2]).unwrap();
    let w: Vec<Tensor> = (0..2).map(|i| tensor(&device, &[8, 8, 3, 3], i as f32)).collect();
    let scale = tensor(&device, &[8, 1, 1], 0.4);
    let (_, plain) =
        counted(&device, || conv2d(&x, &w[0], None, Conv2dOptions::default().padding(1)).unwrap());
    let expected = block(&x, &w, &scale).unwrap();
    let (got, launches) = counted(&device, || lazy(|| block(&x, &w, &scale)).unwrap());
    assert_eq!(launches, 2 * plain);
    close(&got, &expected);
    // Intermediate values that are kept come from the same kernels.
    let (y, z) = lazy(|| {
        let y = conv2d(&x, &w[0], None, Conv2dOptions::default().padding(1))?;
        let z = y.mul(&scale)?.relu()?;
        Ok((y, z))
    })
    .unwrap();
    let plain = conv2d(&x, &w[0], None, Conv2dOptions::default().padding(1)).unwrap();
    close(&y, &plain);
    close(&z, &plain.mul(&scale).unwrap().relu().unwrap());
}

/// Trees over images without a convolution give results in the layout of the single ops.
#[test]
fn images_stay_as_they_lie() {
    for (_, device) in devices() {
        let x = tensor(&device, &[2, 3, 4, 5], 0.0).permute(&[0, 3, 1, 2]).unwrap();
        let [scale, bias] = [tensor(&device, &[5, 1, 1], 1.0), tensor(&device, &[4], 0.3)];
        let chain = |x: &Tensor| x.mul(&scale)?.add(&bias)?.tanh()?.sub(x);
        let expected = chain(&x).unwrap();
        let (got, launches) = counted(&device, || lazy(|| chain(&x)).unwrap());
        assert_eq!(launches, 1);
        assert_eq!(got.layout().strides, expected.layout().strides);
        close(&got, &expected);
        // Also with other images in a scope, and with reductions of images in this layout.
        let both = |x: &Tensor| -> Result<[Tensor; 2]> {
            let rows = bias.exp()?.square()?;
            let y = x.mul(&scale)?.relu()?;
            Ok([y.mean(&[2, 3], false)?.add_scalar(1.0)?, y.mul(&rows)?.sum(&[3], true)?])
        };
        for (g, e) in lazy(|| both(&x)).unwrap().iter().zip(both(&x).unwrap()) {
            close(g, &e);
        }
    }
}

/// A captured step fuses ops that need no gradient, without an explicit scope.
#[test]
fn captured_steps_fuse_by_themselves() {
    let device = test_device().unwrap();
    let case = &cases()[0];
    let t = leaves(&device, case, DType::F32);
    let run =
        |t: &[Tensor]| TREES[1](&conv2d(&t[0], &t[1], Some(&t[2]), case.3)?, &t[3..])?.mul_scalar(2.0)?.exp();
    let step = || no_grad(|| run(&t));
    let expected = step().unwrap();
    let plain =
        counted(&device, || no_grad(|| conv2d(&t[0], &t[1], Some(&t[2]), case.3)).unwrap()).1 as usize;
    let (graph, y) = Graph::capture(&device, step).unwrap();
    assert_eq!(graph.commands().0, plain);
    graph.replay().unwrap();
    close(&y, &expected);
    // It does not fuse if `unfused` is set or gradients are needed; both give the bits of the single ops.
    let (graph, y) = unfused(|| Graph::capture(&device, step)).unwrap();
    assert_eq!(graph.commands().0, plain + 5);
    graph.replay().unwrap();
    assert_eq!(y.to_vec().unwrap(), expected.to_vec().unwrap());
    let (graph, y) = Graph::capture(&device, || run(&t)).unwrap();
    assert_eq!(graph.commands().0, plain + 5);
    graph.replay().unwrap();
    assert_eq!(y.to_vec().unwrap(), expected.to_vec().unwrap());
    // An explicit lazy scope stays lazy.
    let asked = lazy(|| run(&t)).unwrap();
    for fused in [true, false] {
        let step = || {
            let before = t[3].detach().add_scalar(1.0)?;
            lazy(|| run(&t)).map(|y| (y, before))
        };
        let capture = || Graph::capture(&device, step);
        let (graph, (y, _)) = if fused { capture() } else { unfused(capture) }.unwrap();
        assert_eq!(graph.commands().0, plain + 1);
        graph.replay().unwrap();
        assert_eq!(y.to_vec().unwrap(), asked.to_vec().unwrap());
    }
    let off =
        Device::open(&device.capabilities().id, &Settings { no_fuse: true, ..device.settings().clone() })
            .unwrap();
    let t = leaves(&off, case, DType::F32);
    let (graph, _) = Graph::capture(&off, || no_grad(|| run(&t))).unwrap();
    assert_eq!(graph.commands().0, plain + 5);
}
