//! Error messages of every op for inputs of a wrong shape and of a wrong type: the op, the value, and the expected value.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests, which clippy takes for production code

mod images;
mod products;
mod quant_bits;

use netcl_tensor::ops::OPS;
use netcl_tensor::ops::choose::{Chooser, Rules, Texts};
use netcl_tensor::ops::cross_entropy::{CrossEntropy, cross_entropy};
use netcl_tensor::ops::dropout::dropout;
use netcl_tensor::ops::embedding::embedding;
use netcl_tensor::ops::join::cat;
use netcl_tensor::ops::layer_norm::layer_norm;
use netcl_tensor::ops::linear_cross_entropy::{LinearCrossEntropy, linear_cross_entropy};
use netcl_tensor::ops::optimizer::{Entry, Sgd, Update};
use netcl_tensor::ops::residual_norm::{residual_layer_norm, residual_rms_norm};
use netcl_tensor::ops::rms_norm::rms_norm;
use netcl_tensor::suite::test_device;
use netcl_tensor::{DType, Device, ErrorKind, Generator, Result, Tensor};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The expected message for a wrong shape and a wrong type, or the reason why every shape or type is valid.
enum ExpectedError {
    Shape(Result<Tensor>, &'static str),
    Type(Result<Tensor>, &'static str),
    AnyShape(&'static str),
    AnyType(&'static str),
}
use ExpectedError::{AnyShape, AnyType, Shape, Type};

type Row = (&'static str, Vec<ExpectedError>);

/// Zeros to make mistakes with.
struct Zeros(Device);

impl Zeros {
    fn of(&self, dims: &[usize], dtype: DType) -> Tensor {
        Tensor::zeros(&self.0, dims, dtype).unwrap()
    }
    fn f(&self, dims: &[usize]) -> Tensor {
        self.of(dims, DType::F32)
    }
    fn half(&self, dims: &[usize]) -> Tensor {
        self.of(dims, DType::F16)
    }
    fn int(&self, dims: &[usize]) -> Tensor {
        self.of(dims, DType::U32)
    }
}

const VIEWS: &str = "moves no element";

fn views(z: &Zeros) -> Vec<Row> {
    let (f, u) = (z.f(&[2, 3]), z.int(&[2, 3]));
    vec![
        (
            "view::Reshape",
            vec![Shape(f.reshape([7]), "reshape: shape [2, 3] has 6 elements, [7] has 7"), AnyType(VIEWS)],
        ),
        (
            "view::Permute",
            vec![
                Shape(
                    f.permute(&[0, 0]),
                    "permute: axes [0, 0] are not a permutation of the 2 axes of [2, 3]",
                ),
                Shape(
                    f.transpose(0, 2),
                    "transpose: axis 2 is out of range for a tensor of shape [2, 3], which has 2 axes",
                ),
                AnyType(VIEWS),
            ],
        ),
        (
            "view::Slice",
            vec![
                Shape(f.slice(1, 2..5), "slice: 2..5 of axis 1 of shape [2, 3], which has size 3 there"),
                Shape(
                    f.slice(2, 0..1),
                    "slice: axis 2 is out of range for a tensor of shape [2, 3], which has 2 axes",
                ),
                AnyType(VIEWS),
            ],
        ),
        (
            "view::Expand",
            vec![
                Shape(f.expand([2, 4]), "expand: shape [2, 3] does not broadcast to [2, 4]"),
                AnyType(VIEWS),
            ],
        ),
        ("cast::Cast", vec![AnyShape("element by element"), AnyType("is there to change it")]),
        (
            "join::Cat",
            vec![
                Shape(cat(&[], 1), "cat: no tensors, expected at least one"),
                Shape(
                    cat(&[&z.f(&[2])], 1),
                    "cat: axis 1 is out of range for a tensor of shape [2], which has 1 axis",
                ),
                Shape(
                    cat(&[&f, &z.f(&[3, 3])], 1),
                    "cat: tensor 1 has shape [3, 3], expected [2, 3] but for axis 1",
                ),
                Type(cat(&[&f, &u], 0), "cat: tensor 1 is u32, but tensor 0 is f32"),
            ],
        ),
    ]
}

fn elements(z: &Zeros) -> Vec<Row> {
    let (f, u, half) = (z.f(&[2, 3]), z.int(&[2, 3]), z.half(&[2, 3]));
    vec![
        (
            "elementwise::Unary",
            vec![AnyShape("element by element"), Type(u.exp(), "exp: x is u32, expected f32, f16 or bf16")],
        ),
        (
            "elementwise::Binary",
            vec![
                Shape(
                    f.add(&z.f(&[2, 4])),
                    "add: shapes [2, 3] and [2, 4] do not broadcast: sizes 3 and 4 on axis 1 of the result",
                ),
                Type(
                    f.mul(&half),
                    "mul: the second is f16, but the first operand is f32; convert one with `to_dtype`",
                ),
                Type(u.div(&u), "div: the operands are u32, expected f32, f16 or bf16"),
            ],
        ),
        (
            "mask::Where",
            vec![
                Shape(
                    z.int(&[2]).where_cond(&z.f(&[3]), &z.f(&[3])),
                    "where_cond: shapes [3] and [2] do not broadcast: sizes 3 and 2 on axis 0 of the result",
                ),
                Type(
                    u.where_cond(&f, &half),
                    "where_cond: b is f16, but a is f32; convert one with `to_dtype`",
                ),
            ],
        ),
        (
            "mask::MaskedFill",
            vec![
                Shape(
                    f.masked_fill(&z.int(&[2]), 0.0),
                    "masked_fill: mask has shape [2], expected one that broadcasts to [2, 3], the shape of x",
                ),
                Type(u.masked_fill(&u, 0.5), "masked_fill: cannot fill a tensor of u32 with 0.5"),
            ],
        ),
    ]
}

fn training(z: &Zeros) -> Vec<Row> {
    let (f, u) = (z.f(&[2, 3]), z.int(&[2, 3]));
    let mut generator = Generator::new(1);
    vec![
        (
            "dropout::Dropout",
            vec![
                AnyShape("element by element"),
                Type(dropout(&u, 0.5, &mut generator), "dropout: x is u32, expected f32, f16 or bf16"),
            ],
        ),
        (
            "optimizer::Update",
            vec![
                Shape(
                    step(f.clone(), z.f(&[3, 2])),
                    "optimizer: the gradient of w has shape [3, 2], expected [2, 3]",
                ),
                Type(step(u.clone(), u), "optimizer: w is u32, expected f32, f16 or bf16"),
            ],
        ),
    ]
}

/// A step of gradient descent.
fn step(param: Tensor, grad: Tensor) -> Result<Tensor> {
    let param = param.parameter("w");
    param.set_grad(Some(grad));
    let entry = Entry { param: param.clone(), weight_decay: 0.0, lr_scale: 1.0 };
    let rule = Arc::new(Sgd { momentum: 0.0, dampening: 0.0, nesterov: false });
    Update::new(rule, vec![entry], None)?.step(0.1, None)?;
    Ok(param)
}

fn softmaxes(z: &Zeros) -> Vec<Row> {
    let (f, u) = (z.f(&[2, 3]), z.int(&[2, 3]));
    vec![
        (
            "softmax::Softmax",
            vec![
                Shape(
                    f.softmax(2),
                    "softmax: axis 2 is out of range for a tensor of shape [2, 3], which has 2 axes",
                ),
                Type(u.softmax(1), "softmax: x is u32, expected f32, f16 or bf16"),
            ],
        ),
        (
            "softmax::LogSoftmax",
            vec![
                Shape(
                    f.log_softmax(-3),
                    "log_softmax: axis -3 is out of range for a tensor of shape [2, 3], which has 2 axes",
                ),
                Type(u.log_softmax(1), "log_softmax: x is u32, expected f32, f16 or bf16"),
            ],
        ),
        (
            "logsumexp::LogSumExp",
            vec![
                Shape(
                    f.logsumexp(2),
                    "logsumexp: axis 2 is out of range for a tensor of shape [2, 3], which has 2 axes",
                ),
                Type(u.logsumexp(1), "logsumexp: x is u32, expected f32, f16 or bf16"),
            ],
        ),
    ]
}

fn rows(z: &Zeros) -> Vec<Row> {
    let (f, u, empty) = (z.f(&[2, 3]), z.int(&[2, 3]), z.f(&[2, 0]));
    let mut draws = Generator::new(1);
    vec![
        (
            "reduce::Sum",
            vec![
                Shape(
                    f.sum(&[2], false),
                    "sum: axis 2 is out of range for a tensor of shape [2, 3], which has 2 axes",
                ),
                Shape(f.mean(&[1, -1], false), "mean: axes [1, -1] name one axis twice"),
                Type(u.mean(&[1], false), "mean: x is u32, expected f32, f16 or bf16"),
                Type(
                    z.of(&[2, 3], DType::Bool).sum(&[1], false),
                    "sum: x is bool, expected numbers; convert it with `to_dtype`",
                ),
            ],
        ),
        (
            "reduce::Max",
            vec![
                Shape(empty.max(&[1], false), "max: cannot reduce an empty axis of shape [2, 0]"),
                AnyType("that of integers and masks is exact, and does not have a gradient"),
            ],
        ),
        (
            "argmax::ArgMax",
            vec![
                Shape(empty.argmax(-1), "argmax: cannot choose from an empty axis of shape [2, 0]"),
                Type(u.argmax(0), "argmax: x is u32, expected f32, f16 or bf16"),
            ],
        ),
        (
            "topk::TopK",
            vec![
                Shape(f.topk(4).map(|t| t.0), "topk: k is 4, but rows of x [2, 3] have 3 elements"),
                Type(u.topk(2).map(|t| t.0), "topk: x is u32, expected f32, f16 or bf16"),
            ],
        ),
        (
            "multinomial::Multinomial",
            vec![
                Shape(
                    empty.multinomial(2, &mut draws),
                    "multinomial: cannot choose from an empty axis of weights [2, 0]",
                ),
                Type(u.multinomial(2, &mut draws), "multinomial: weights is u32, expected f32, f16 or bf16"),
            ],
        ),
        ("choose::Choose", choices(z)),
    ]
}

/// Lists the errors of sampling for two texts.
fn choices(z: &Zeros) -> Vec<ExpectedError> {
    let state = Texts::new(&z.0, 2, 3).unwrap();
    let by = |texts| Chooser::new(&z.0, &Rules::greedy(), texts, 5, Some(&[0.0; 5])).unwrap().unwrap();
    vec![
        Shape(
            state.choose(&z.f(&[2, 5]), &by(3)),
            "choose: rules [3, 12], words [3, 2] and state [11], expected [2, 12], [R, 2] and [2 * 2 + P + R * 2] with P from 1 to 2, with logits [2, 5]",
        ),
        Shape(
            state.choose(&z.f(&[2, 4]), &by(2)),
            "choose: bias has shape [5], expected [4], with logits [2, 4]",
        ),
        Type(state.choose(&z.int(&[2, 5]), &by(2)), "choose: logits is u32, expected f32, f16 or bf16"),
    ]
}

fn layers(z: &Zeros) -> Vec<Row> {
    let (x, n) = (z.f(&[2, 8]), z.f(&[8]));
    vec![
        (
            "layer_norm::LayerNorm",
            vec![
                Shape(
                    layer_norm(&x, &z.f(&[7]), &n, 1e-5),
                    "layer_norm: gamma has shape [7], expected [8], the last dimension of x [2, 8]",
                ),
                Type(
                    layer_norm(&x, &z.half(&[8]), &n, 1e-5),
                    "layer_norm: gamma is f16, but x is f32; convert one with `to_dtype`",
                ),
            ],
        ),
        (
            "rms_norm::RmsNorm",
            vec![
                Shape(
                    rms_norm(&x, &z.f(&[7]), 1e-5),
                    "rms_norm: gamma has shape [7], expected [8], the last dimension of x [2, 8]",
                ),
                Type(rms_norm(&z.int(&[2, 8]), &n, 1e-5), "rms_norm: x is u32, expected f32, f16 or bf16"),
            ],
        ),
        (
            "residual_norm::ResidualLayerNorm",
            vec![
                Shape(
                    residual_layer_norm(&x, &n, &z.f(&[7]), 1e-5).map(|(_, y)| y),
                    "residual_layer_norm: beta has shape [7], expected [8], the last dimension of x [2, 8]",
                ),
                Type(
                    residual_layer_norm(&x, &n, &z.half(&[8]), 1e-5).map(|(_, y)| y),
                    "residual_layer_norm: beta is f16, but x is f32; convert one with `to_dtype`",
                ),
            ],
        ),
        (
            "residual_norm::ResidualRmsNorm",
            vec![
                Shape(
                    residual_rms_norm(&x, &z.f(&[7]), 1e-5).map(|(_, y)| y),
                    "residual_rms_norm: gamma has shape [7], expected [8], the last dimension of x [2, 8]",
                ),
                Type(
                    residual_rms_norm(&z.int(&[2, 8]), &n, 1e-5).map(|(_, y)| y),
                    "residual_rms_norm: x is u32, expected f32, f16 or bf16",
                ),
            ],
        ),
    ]
}

fn losses(z: &Zeros) -> Vec<Row> {
    let (x, n) = (z.f(&[2, 8]), z.f(&[8]));
    let loss = |logits: &Tensor, targets: &Tensor| cross_entropy(logits, targets, CrossEntropy::default());
    let head = |x: &Tensor, weight: &Tensor, targets: &Tensor| {
        linear_cross_entropy(x, weight, targets, LinearCrossEntropy::default())
    };
    vec![
        (
            "embedding::Embedding",
            vec![
                Shape(embedding(&n, &z.int(&[2])), "embedding: table has shape [8], expected (V, C)"),
                Type(embedding(&x, &n), "embedding: ids is f32, expected u32 or i32"),
                Type(
                    embedding(&z.int(&[2, 8]), &z.int(&[2])),
                    "embedding: table is u32, expected f32, f16 or bf16",
                ),
            ],
        ),
        (
            "cross_entropy::CrossEntropy",
            vec![
                Shape(
                    loss(&x, &z.int(&[3])),
                    "cross_entropy: targets has shape [3], expected [2], the shape of logits [2, 8] without its last axis",
                ),
                Shape(loss(&z.f(&[]), &z.int(&[])), "cross_entropy: logits is a scalar, expected (.., V)"),
                Type(loss(&x, &z.f(&[2])), "cross_entropy: targets is f32, expected u32 or i32"),
            ],
        ),
        (
            "linear_cross_entropy::LinearCrossEntropy",
            vec![
                Shape(
                    head(&x, &z.f(&[5, 7]), &z.int(&[2])),
                    "linear_cross_entropy: the last axis of x [2, 8] is 8, expected 7, the last axis of weight [5, 7]",
                ),
                Shape(
                    head(&x, &z.f(&[5, 8]), &z.int(&[3])),
                    "linear_cross_entropy: targets has shape [3], expected [2], the shape of x [2, 8] without its last axis",
                ),
                Type(
                    head(&x, &z.half(&[5, 8]), &z.int(&[2])),
                    "linear_cross_entropy: weight is f16, but x is f32; convert one with `to_dtype`",
                ),
                Type(
                    head(&x, &z.f(&[5, 8]), &z.f(&[2])),
                    "linear_cross_entropy: targets is f32, expected u32 or i32",
                ),
            ],
        ),
    ]
}

fn refused(op: &str, result: Result<Tensor>, kind: ErrorKind, expected: &str) {
    let Err(error) = result else { panic!("{op}: expected an error: {expected}") };
    assert_eq!((error.kind(), error.message()), (kind, expected), "{op}");
}

#[test]
fn every_op_refuses_wrong_shapes_and_types_by_name() {
    let z = Zeros(test_device().unwrap());
    let mut seen = BTreeSet::new();
    let table = [
        views(&z),
        elements(&z),
        training(&z),
        rows(&z),
        softmaxes(&z),
        layers(&z),
        losses(&z),
        images::convolutions(&z),
        images::windows(&z),
        images::statistics(&z),
        images::numbered(&z),
        products::products(&z),
        products::fused(&z),
        products::decoders(&z),
        products::mixtures(&z),
        products::decoding(&z),
        products::attentions(&z),
    ];
    for (op, cases) in table.into_iter().flatten() {
        assert!(seen.insert(op), "{op} stands here twice");
        let (mut shapes, mut types) = (0, 0);
        for case in cases {
            *if matches!(case, Shape(..) | AnyShape(_)) { &mut shapes } else { &mut types } += 1;
            match case {
                Shape(result, expected) => refused(op, result, ErrorKind::Shape, expected),
                Type(result, expected) => refused(op, result, ErrorKind::DType, expected),
                AnyShape(why) | AnyType(why) => assert!(!why.is_empty()),
            }
        }
        assert!(
            shapes > 0 && types > 0,
            "{op}: {shapes} wrong shapes and {types} wrong types, expected one of each"
        );
    }
    let ops: BTreeSet<&str> = OPS.iter().map(|e| e.name).collect();
    assert_eq!(seen, ops, "this table and OPS differ");
}
