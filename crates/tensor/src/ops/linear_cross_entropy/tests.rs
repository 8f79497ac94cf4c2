//! Comparison with the separate operations, runs without gradients, and rejected arguments.

use super::super::cross_entropy::cross_entropy;
use super::super::matmul::matmul;
use super::*;
use crate::suite::test_device;

fn inputs(device: &Device, [rows, c, v]: [usize; 3], dtype: DType) -> [Tensor; 3] {
    let draw = |shape: &[usize], seed| {
        let data: Vec<f32> =
            SampleInput::normal(shape).draw(seed, dtype).data.iter().map(|x| *x as f32).collect();
        Tensor::from_f32(device, shape, &data, dtype).unwrap()
    };
    let targets: Vec<i32> = (0..rows).map(|i| if i % 7 == 3 { -100 } else { (i * 5 % v) as i32 }).collect();
    let targets = Tensor::from_i32(device, [rows], &targets).unwrap();
    [draw(&[rows, c], 1).parameter("x"), draw(&[v, c], 2).parameter("weight"), targets]
}

/// Tests that chunks change only the rounding, for any scale of the loss.
#[test]
fn chunks_agree_with_the_ops_they_replace() {
    let device = test_device().unwrap();
    // The last two get padded classes.
    let uneven = [([520, 8, 1027], DType::Bf16), ([200, 8, 1030], DType::F16)];
    for (sizes, dtype) in [([700, 16, 24], DType::Bf16), ([520, 8, 40], DType::F32)].into_iter().chain(uneven)
    {
        let [x, weight, targets] = inputs(&device, sizes, dtype);
        let gradients = |loss: &Tensor| {
            x.set_grad(None);
            weight.set_grad(None);
            loss.mul_scalar(0.5).unwrap().backward().unwrap();
            [&x, &weight].map(|t| t.grad().unwrap().to_vec().unwrap())
        };
        let logits = matmul(&x, &weight.transpose(0, 1).unwrap()).unwrap();
        let separate = cross_entropy(&logits, &targets, CrossEntropy::default()).unwrap();
        let expected = gradients(&separate);
        let options = LinearCrossEntropy { chunk: Some(MIN_CHUNK_ROWS), ..LinearCrossEntropy::default() };
        let loss = linear_cross_entropy(&x, &weight, &targets, options).unwrap();
        let unit = dtype.epsilon() as f32;
        let (a, b) = (loss.item().unwrap(), separate.item().unwrap());
        assert!((a - b).abs() <= 4.0 * unit * b, "{a}, expected {b}");
        for (got, expected) in gradients(&loss).iter().zip(&expected) {
            let scale = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            for (i, (g, e)) in got.iter().zip(expected).enumerate() {
                assert!((g - e).abs() <= 8.0 * unit * scale, "{dtype}: element {i} is {g}, expected {e}");
            }
        }
    }
}

/// Tests that padded classes are invalid as targets, with and without gradients.
#[test]
fn targets_past_the_classes_make_the_loss_nan() {
    let device = test_device().unwrap();
    for (dtype, wrong) in [(DType::Bf16, 1027), (DType::F16, 1031), (DType::F32, 1027), (DType::Bf16, -1)] {
        let [x, weight, _] = inputs(&device, [3, 8, 1027], dtype);
        let targets = Tensor::from_i32(&device, [3], &[1026, wrong, 0]).unwrap();
        let options = LinearCrossEntropy::default();
        let loss = linear_cross_entropy(&x, &weight, &targets, options).unwrap();
        loss.backward().unwrap();
        let dx = x.grad().unwrap().to_vec().unwrap();
        let nans = |row: usize| dx[row * 8..][..8].iter().filter(|v| v.is_nan()).count();
        assert!(
            loss.item().unwrap().is_nan() && [nans(0), nans(1), nans(2)] == [0, 8, 0],
            "{dtype}, {wrong}: {dx:?}"
        );
        let bare = linear_cross_entropy(&x.detach(), &weight.detach(), &targets, options).unwrap();
        assert!(bare.item().unwrap().is_nan(), "{dtype}, {wrong}");
    }
}

/// Tests that an evaluation computes no gradients, and needs only the memory of a chunk's logits.
#[test]
fn without_the_tape_there_are_no_gradients() {
    let device = test_device().unwrap();
    let [x, weight, targets] = inputs(&device, [520, 8, 40], DType::F32);
    let options = LinearCrossEntropy { chunk: Some(MIN_CHUNK_ROWS), ..LinearCrossEntropy::default() };
    let loss = |x: &Tensor, weight: &Tensor| linear_cross_entropy(x, weight, &targets, options).unwrap();
    let expected = loss(&x, &weight).item().unwrap();
    let before = device.launches();
    loss(&x, &weight);
    let training = device.launches() - before;
    let (y, launches) = tape::no_grad(|| {
        let before = device.launches();
        (loss(&x, &weight), device.launches() - before)
    });
    assert!((y.item().unwrap() - expected).abs() < 1e-5 && !y.requires_grad());
    assert!(launches < training, "{launches} launches, {training} with gradients");
    // One tensor that needs a gradient is enough, and the other gets none.
    x.set_grad(None);
    weight.set_grad(None);
    loss(&x.detach(), &weight).backward().unwrap();
    assert!(x.grad().is_none() && weight.grad().is_some());
    let none = linear_cross_entropy(
        &x.slice(0, 0..0).unwrap(),
        &weight,
        &targets.slice(0, 0..0).unwrap(),
        LinearCrossEntropy::default(),
    );
    assert!(none.unwrap().item().unwrap().is_nan(), "a mean of nothing");
}

#[test]
fn what_does_not_fit_is_refused() {
    let device = test_device().unwrap();
    let [x, weight, targets] = inputs(&device, [6, 4, 9], DType::F32);
    let said = |x: &Tensor, weight: &Tensor, targets: &Tensor, options| {
        linear_cross_entropy(x, weight, targets, options).unwrap_err().message().to_owned()
    };
    let usual = LinearCrossEntropy::default();
    assert_eq!(
        said(&x, &weight.slice(1, 0..3).unwrap(), &targets, usual),
        "linear_cross_entropy: the last axis of x [6, 4] is 4, expected 3, the last axis of weight [9, 3]"
    );
    assert!(
        said(&x, &weight, &targets.slice(0, 0..5).unwrap(), usual)
            .contains("targets has shape [5], expected [6]")
    );
    let chunk = LinearCrossEntropy { chunk: Some(300), ..usual };
    assert!(
        said(&x, &weight, &targets, chunk).contains("chunk is 300, expected a power of two of at least 256")
    );
    let smooth = LinearCrossEntropy { label_smoothing: 1.5, ..usual };
    assert!(said(&x, &weight, &targets, smooth).contains("label_smoothing is 1.5"));
}
