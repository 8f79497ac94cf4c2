//! Convolutions, pooling and batch norm.

use super::{Row, Shape, Type, Zeros};
use netcl_tensor::Error;
use netcl_tensor::ops::batch_norm::batch_norm;
use netcl_tensor::ops::conv::{Conv2dOptions, ConvTranspose2dOptions, conv_transpose2d, conv2d};
use netcl_tensor::ops::pool::{Windows, avg_pool2d, max_pool2d};

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
                    "conv2d: x [1, 2, 4, 4] has 2 channels and w [3, 4, 3, 3] is for 4 of each of 1 group, expected as many, and output channels that \
                     are a multiple of the groups",
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
                    "conv2d: stride [0, 0], dilation [1, 1] and 1 groups, expected at least 1 of each",
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
                    "conv_transpose2d: x [1, 2, 4, 4] has 2 channels and w [3, 2, 3, 3] is for 3, expected as many, a multiple of 1 group",
                ),
                Type(
                    conv_transpose2d(&half, &z.f(&[2, 3, 3, 3]), None, transposed),
                    "conv_transpose2d: w is f32, but x is f16; convert one with `to_dtype`",
                ),
            ],
        ),
    ]
}

pub fn windows(z: &Zeros) -> Vec<Row> {
    let (x, half) = (z.f(&[1, 2, 4, 4]), z.half(&[1, 2, 4, 4]));
    let none = || Err(Error::internal("no result"));
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
    ]
}
