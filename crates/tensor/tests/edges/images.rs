//! Convolutions, pooling and batch norm.

use super::{AnyType, Row, Shape, Type, Zeros};
use netcl_tensor::ops::add_relu::add_relu;
use netcl_tensor::ops::batch_norm::{batch_norm, batch_statistics};
use netcl_tensor::ops::conv::{Conv2dOptions, ConvTranspose2dOptions, conv_transpose2d, conv2d};
use netcl_tensor::ops::gather::{gather, scatter, scatter_add};
use netcl_tensor::ops::pool::{Windows, avg_pool2d, max_pool2d};
use netcl_tensor::{DType, Error};

pub fn convolutions(z: &Zeros) -> Vec<Row> {
    let (x, w, half) = (z.f(&[1, 2, 4, 4]), z.f(&[3, 2, 3, 3]), z.half(&[1, 2, 4, 4]));
    let plain = Conv2dOptions::default();
    let transposed = ConvTranspose2dOptions::default();
    vec![
        (
            "conv::Conv2d",
            vec![
                Shape(
                    conv2d(&x, &z.f(&[3, 4, 3, 3]), None, plain),
                    "conv2d: x [1, 2, 4, 4] has 2 channels and w [3, 4, 3, 3] is for 4 in each of 1 group, expected the same number, and output \
                     channels that are a multiple of the groups",
                ),
                Shape(
                    conv2d(&x, &w, None, plain.dilation(2)),
                    "conv2d: w [3, 2, 3, 3] with dilation [2, 2] does not fit x [1, 2, 4, 4] with padding [0, 0]; pad more",
                ),
                Shape(
                    conv2d(&x, &w, Some(&z.f(&[4])), plain),
                    "conv2d: bias has shape [4], expected [3], the output channels of w [3, 2, 3, 3]",
                ),
                Shape(
                    conv2d(&x, &w, None, plain.stride(0)),
                    "conv2d: stride [0, 0], dilation [1, 1] and 1 groups, expected at least 1 for each",
                ),
                Type(
                    conv2d(&half, &w, None, plain),
                    "conv2d: w is f32, but x is f16; convert one with `to_dtype`",
                ),
            ],
        ),
        (
            "conv::ConvTranspose2d",
            vec![
                Shape(
                    conv_transpose2d(&x, &w, None, transposed),
                    "conv_transpose2d: x [1, 2, 4, 4] has 2 channels and w [3, 2, 3, 3] is for 3, expected the same number, a multiple of 1 group",
                ),
                Type(
                    conv_transpose2d(&half, &z.f(&[2, 3, 3, 3]), None, transposed),
                    "conv_transpose2d: w is f32, but x is f16; convert one with `to_dtype`",
                ),
            ],
        ),
    ]
}

pub fn numbered(z: &Zeros) -> Vec<Row> {
    let (x, ids, half) = (z.f(&[2, 3]), z.int(&[2, 4]), z.half(&[2, 4]));
    vec![
        (
            "sort::Sort",
            vec![
                Shape(
                    x.sort(2, false).map(|t| t.0),
                    "sort: axis 2 is out of range for a tensor of shape [2, 3], which has 2 axes",
                ),
                AnyType("integers are sorted as well"),
            ],
        ),
        (
            "cumsum::CumSum",
            vec![
                Shape(
                    x.cumsum(-3),
                    "cumsum: axis -3 is out of range for a tensor of shape [2, 3], which has 2 axes",
                ),
                Type(ids.cumsum(0), "cumsum: x is u32, expected f32, f16 or bf16"),
            ],
        ),
        (
            "gather::Gather",
            vec![
                Shape(
                    gather(&x, 1, &z.int(&[3, 4])),
                    "gather: ids have shape [3, 4], expected the axes of x [2, 3], none longer but axis 1",
                ),
                Type(gather(&x, 1, &x), "gather: ids is f32, expected u32 or i32"),
            ],
        ),
        (
            "gather::Scatter",
            vec![
                Shape(
                    scatter(&x, 1, &ids, &x),
                    "scatter: source has shape [2, 3], expected [2, 4], the shape of ids",
                ),
                Type(
                    scatter(&x, 1, &ids, &half),
                    "scatter: source is f16, but x is f32; convert one with `to_dtype`",
                ),
            ],
        ),
        (
            "gather::ScatterAdd",
            vec![
                Shape(
                    scatter_add(&x, 0, &ids, &half.to_dtype(DType::F32).unwrap()),
                    "scatter_add: ids have shape [2, 4], expected the axes of x [2, 3], none longer but axis 0",
                ),
                Type(
                    scatter_add(&x, 1, &ids, &half),
                    "scatter_add: source is f16, but x is f32; convert one with `to_dtype`",
                ),
            ],
        ),
    ]
}

pub fn windows(z: &Zeros) -> Vec<Row> {
    let (x, half) = (z.f(&[1, 2, 4, 4]), z.half(&[1, 2, 4, 4]));
    vec![
        (
            "pool::MaxPool2d",
            vec![
                Shape(
                    max_pool2d(&z.f(&[2, 4, 4]), Windows::of(2)),
                    "max_pool2d: x: expected 4 axes, got shape [2, 4, 4]",
                ),
                Type(
                    max_pool2d(&z.int(&[1, 2, 4, 4]), Windows::of(2)),
                    "max_pool2d: x is u32, expected f32, f16 or bf16",
                ),
            ],
        ),
        (
            "pool::AvgPool2d",
            vec![
                Shape(
                    avg_pool2d(&x, Windows::Adaptive { output: [0, 1] }, false),
                    "adaptive_avg_pool2d: [0, 1] windows on x [1, 2, 4, 4], expected at least one of each",
                ),
                Type(
                    avg_pool2d(&z.int(&[1, 2, 4, 4]), Windows::of(2), true),
                    "avg_pool2d: x is u32, expected f32, f16 or bf16",
                ),
            ],
        ),
        (
            "add_relu::AddRelu",
            vec![
                Shape(
                    add_relu(&x, &z.f(&[4])),
                    "add_relu: b has shape [4], expected [1, 2, 4, 4], the shape of a",
                ),
                Type(add_relu(&x, &half), "add_relu: b is f16, but a is f32; convert one with `to_dtype`"),
            ],
        ),
    ]
}

/// Tests statistics of channels, and normalization by them.
pub fn statistics(z: &Zeros) -> Vec<Row> {
    let (x, half) = (z.f(&[1, 2, 4, 4]), z.half(&[1, 2, 4, 4]));
    let none = || Err(Error::internal("no result"));
    vec![
        (
            "batch_norm::BatchNorm",
            vec![
                Shape(
                    batch_norm(&x, &z.f(&[3]), &z.f(&[2]), 1e-5).and_then(|_| none()),
                    "batch_norm: gamma has shape [3], expected [2], one for each channel of x [1, 2, 4, 4]",
                ),
                Type(
                    batch_norm(&half, &z.f(&[2]), &z.f(&[2]), 1e-5).and_then(|_| none()),
                    "batch_norm: gamma is f32, but x is f16; convert one with `to_dtype`",
                ),
            ],
        ),
        (
            "batch_norm::BatchStatistics",
            vec![
                Shape(batch_statistics(&z.f(&[4])), "batch_statistics: x has shape [4], expected (N, C, ..)"),
                Shape(
                    batch_statistics(&z.f(&[0, 4])),
                    "batch_statistics: x has shape [0, 4], expected at least one element",
                ),
                Type(
                    batch_statistics(&z.int(&[2, 4])),
                    "batch_statistics: x is u32, expected f32, f16 or bf16",
                ),
            ],
        ),
    ]
}
