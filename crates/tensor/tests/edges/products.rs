//! Matrix products, fused products, and attention.

use super::{ExpectedError, Row, Shape, Type, Zeros};
use netcl_tensor::ops::attention::{AttentionOptions, attention, attention_qkv};
use netcl_tensor::ops::balance_loss::balance_loss;
use netcl_tensor::ops::decode_attention::{CacheAt, DecodeOptions, HeadNorm, decode_attention};
use netcl_tensor::ops::decode_embedding::decode_embedding;
use netcl_tensor::ops::experts::experts;
use netcl_tensor::ops::feed_forward::{feed_forward, linear_add, linear_residual};
use netcl_tensor::ops::fused_linear::{FusedOps, PreNorm, fused_linear};
use netcl_tensor::ops::gated::{Gate, gated};
use netcl_tensor::ops::matmul::{linear, matmul};
use netcl_tensor::ops::paged_cache::{TextPages, cache_append, cache_gather};
use netcl_tensor::ops::rope::rope;
use netcl_tensor::ops::route::route;
use netcl_tensor::{DType, Result, Tensor};

pub fn products(z: &Zeros) -> Vec<Row> {
    let (a, b) = (z.f(&[2, 3]), z.f(&[3, 5]));
    vec![
        (
            "matmul::MatMul",
            vec![
                Shape(
                    matmul(&a, &z.f(&[4, 5])),
                    "matmul: the last axis of a [2, 3] is 3, expected 4, the second-to-last axis of b [4, 5]",
                ),
                Type(
                    matmul(&a, &z.half(&[3, 5])),
                    "matmul: b is f16, but a is f32; convert one with `to_dtype`",
                ),
            ],
        ),
        (
            "matmul::Linear",
            vec![
                Shape(
                    linear(&a, &z.f(&[4, 5]), None),
                    "linear: the last axis of x [2, 3] is 3, expected 4, the first axis of w [4, 5]",
                ),
                Shape(linear(&a, &z.f(&[3]), None), "linear: w: expected 2 axes, got shape [3]"),
                Shape(
                    linear(&a, &b, Some(&z.f(&[4]))),
                    "linear: bias has shape [4], expected [5], the last axis of w [3, 5]",
                ),
                Type(
                    linear(&a, &b, Some(&z.half(&[5]))),
                    "linear: bias is f16, but x is f32; convert one with `to_dtype`",
                ),
            ],
        ),
    ]
}

pub fn fused(z: &Zeros) -> Vec<Row> {
    let (a, b) = (z.f(&[2, 3]), z.f(&[3, 5]));
    vec![
        (
            "feed_forward::LinearAdd",
            vec![
                Shape(
                    linear_add(&z.f(&[2, 5]), &z.f(&[2, 4]), &b, &z.f(&[5])),
                    "linear_add: the last axis of x [2, 4] is 4, expected 3, the first axis of w [3, 5]",
                ),
                Shape(
                    linear_add(&a, &a, &b, &z.f(&[5])),
                    "linear_add: residual has shape [2, 3], expected [2, 5], the shape of the result",
                ),
                Type(
                    linear_add(&z.half(&[2, 5]), &a, &b, &z.f(&[5])),
                    "linear_add: residual is f16, but x is f32; convert one with `to_dtype`",
                ),
            ],
        ),
        (
            "feed_forward::FeedForward",
            vec![
                Shape(
                    feed_forward(&a, &a, [&b, &z.f(&[5]), &z.f(&[4, 3]), &z.f(&[3])]),
                    "feed_forward: the last axis of the hidden layer [2, 5] is 5, expected 4, the first axis of w2 [4, 3]",
                ),
                Shape(
                    feed_forward(&a, &a, [&b, &z.f(&[4]), &z.f(&[5, 3]), &z.f(&[3])]),
                    "feed_forward: b1 has shape [4], expected [5], the last axis of w1 [3, 5]",
                ),
                Type(
                    feed_forward(&a, &a, [&b, &z.half(&[5]), &z.f(&[5, 3]), &z.f(&[3])]),
                    "feed_forward: b1 is f16, but x is f32; convert one with `to_dtype`",
                ),
            ],
        ),
    ]
}

/// Tests the operations of a decoding step.
pub fn decoding(z: &Zeros) -> Vec<Row> {
    let (x, w) = (z.f(&[2, 4]), z.f(&[4, 6]));
    let around = FusedOps::default();
    let gamma = z.half(&[4]);
    let halved = PreNorm { gamma: &gamma, beta: None, unit_offset: false, eps: 1e-6 };
    vec![
        (
            "fused_linear::FusedLinear",
            vec![
                Shape(
                    fused_linear(&z.f(&[2, 3]), &w, around),
                    "fused_linear: x [2, 3] and w [4, 6], expected x (.., 4)",
                ),
                Shape(
                    fused_linear(
                        &x,
                        &z.f(&[4, 5]),
                        FusedOps { activation: Some((Gate::Silu, true)), ..around },
                    ),
                    "fused_linear: x [2, 4] and w [4, 5], expected x (.., 4) and an even number of columns, gates before values",
                ),
                Shape(
                    fused_linear(&x, &w, FusedOps { bias: Some(&z.f(&[5])), ..around }),
                    "fused_linear: bias has shape [5], expected [6], with x [2, 4] and w [4, 6]",
                ),
                Shape(
                    fused_linear(&x, &w, FusedOps { residual: Some(&x), ..around }),
                    "fused_linear: residual has shape [2, 4], expected [2, 6], with x [2, 4] and w [4, 6]",
                ),
                Type(
                    fused_linear(&x, &w, FusedOps { norm: Some(halved), ..around }),
                    "fused_linear: gamma is f16, but x is f32; convert one with `to_dtype`",
                ),
            ],
        ),
        (
            "decode_embedding::DecodeEmbedding",
            vec![
                Shape(
                    decode_embedding(&x, &z.int(&[3, 1]), 1.0, Some((&w, &z.int(&[1])))),
                    "decode_embedding: positions [4, 6] and position [1], expected (P, 4) and [1] or [3], with table [2, 4] and ids [3, 1]",
                ),
                Type(
                    decode_embedding(&x, &x, 1.0, None),
                    "decode_embedding: ids is f32, expected u32 or i32",
                ),
            ],
        ),
        ("decode_attention::DecodeAttention", decode_steps(z)),
        ("paged_cache::CacheAppend", appended(z)),
        ("paged_cache::CacheGather", gathered(z)),
    ]
}

/// Uses pages of four rows with two heads of 8 elements each.
fn appended(z: &Zeros) -> Vec<ExpectedError> {
    let (cache, pages) = (z.f(&[3, 4, 2, 8]), z.int(&[2]));
    let append = |x: &Tensor, rows: &Tensor, pages: &Tensor, first| {
        cache_append(x, TextPages { rows, pages }, first).map(|()| rows.clone())
    };
    let x = z.f(&[3, 2, 8]);
    vec![
        Shape(append(&x, &cache, &pages, 6), "cache_append: rows 6 to 9 of a text with pages for 8"),
        Shape(
            append(&z.f(&[3, 4, 8]), &cache, &pages, 0),
            "cache_append: x [3, 4, 8] has 4 heads, but cache [3, 4, 2, 8] has 2",
        ),
        Shape(
            append(&z.f(&[3, 2, 7]), &cache, &pages, 0),
            "cache_append: the last axis of cache f32 [3, 4, 2, 8], expected 7, contiguous, for heads of 7",
        ),
        Shape(
            append(&x, &cache, &z.int(&[1, 2]), 0),
            "cache_append: pages [1, 2], expected a contiguous (M)",
        ),
        Type(append(&x, &cache, &z.f(&[2]), 0), "cache_append: pages is f32, expected u32 or i32"),
        Type(
            append(&z.half(&[3, 2, 8]), &cache, &pages, 0),
            "cache_append: cache is f32, but x is f16; convert one with `to_dtype`",
        ),
    ]
}

fn gathered(z: &Zeros) -> Vec<ExpectedError> {
    let (rows, pages) = (&z.f(&[3, 4, 2, 8]), &z.int(&[2]));
    let gather = |places, size, dtype| cache_gather(TextPages { rows, pages }, places, size, dtype);
    vec![
        Shape(gather(7..9, 8, DType::F32), "cache_gather: rows 7 to 9 of a text with pages for 8"),
        Shape(
            gather(0..1, 9, DType::F32),
            "cache_gather: the last axis of cache f32 [3, 4, 2, 8], expected 9, contiguous, for heads of 9",
        ),
        Type(gather(0..1, 8, DType::F16), "cache_gather: rows of a cache of f32 as f16"),
    ]
}

/// Uses four query heads that share two key heads of 8 elements each.
fn decode_steps(z: &Zeros) -> Vec<ExpectedError> {
    let options = DecodeOptions { heads: 4, kv_heads: 2, scale: None, window: None, softcap: None };
    let (rows, first) = (z.f(&[2, 9, 4, 8]), z.int(&[1]));
    let qkv = z.f(&[2, 1, 64]);
    let step = |qkv: &Tensor, position: &Tensor, rotary, norm| -> Result<Tensor> {
        decode_attention(qkv, CacheAt { rows: &rows, position, pages: None }, rotary, norm, options)
    };
    let (short, table, half, narrow) = (z.f(&[8, 4]), z.f(&[9, 4]), z.half(&[9, 4]), z.f(&[7]));
    let normed = HeadNorm { query: &narrow, key: &narrow, eps: 1e-6, unit_offset: false };
    vec![
        Shape(
            step(&z.f(&[2, 1, 48]), &first, None, None),
            "decode_attention: qkv [2, 1, 48] and cache [2, 9, 4, 8] with 4 query and 2 key heads: expected \
             (B,T,(4+2*2)*D) and (B,S,2*2,D), query heads a multiple of key heads",
        ),
        Shape(
            step(&qkv, &z.int(&[3]), None, None),
            "decode_attention: position has shape [3], expected [1] or [2], the texts of qkv [2, 1, 64]",
        ),
        Shape(
            step(&qkv, &first, Some([&short, &short]), None),
            "decode_attention: cosines [8, 4] and sines [8, 4], expected (9 or more, R/2) for the rows of cache \
             [2, 9, 4, 8], R at most 8",
        ),
        Shape(
            step(&qkv, &first, None, Some(normed)),
            "decode_attention: the queries' norm has shape [7], expected [8], the last axis of cache [2, 9, 4, 8]",
        ),
        Type(step(&qkv, &z.f(&[1]), None, None), "decode_attention: position is f32, expected u32 or i32"),
        Type(
            step(&qkv, &first, Some([&table, &half]), None),
            "decode_attention: sines are f16, expected f32",
        ),
    ]
}

/// Tests other operations of decoders.
pub fn decoders(z: &Zeros) -> Vec<Row> {
    let (a, b) = (z.f(&[2, 3]), z.f(&[3, 5]));
    let (x, angles) = (z.f(&[1, 4, 24]), z.f(&[4, 4]));
    vec![
        (
            "feed_forward::LinearResidual",
            vec![
                Shape(
                    linear_residual(&z.f(&[2, 5]), &z.f(&[2, 4]), &b),
                    "linear_residual: the last axis of x [2, 4] is 4, expected 3, the first axis of w [3, 5]",
                ),
                Shape(
                    linear_residual(&a, &a, &b),
                    "linear_residual: residual has shape [2, 3], expected [2, 5], the shape of the result",
                ),
                Type(
                    linear_residual(&z.half(&[2, 5]), &a, &b),
                    "linear_residual: residual is f16, but x is f32; convert one with `to_dtype`",
                ),
            ],
        ),
        (
            "gated::Gated",
            vec![
                Shape(
                    gated(&a, Gate::Silu),
                    "gated: x has shape [2, 3], expected a last axis of gate and value of equal length",
                ),
                Type(gated(&z.int(&[2, 4]), Gate::Silu), "gated: x is u32, expected f32, f16 or bf16"),
            ],
        ),
        (
            "rope::Rope",
            vec![
                Shape(
                    rope(&x, &angles, &angles, 4, 8),
                    "rope: 4 heads of 8 with 8 rotated elements each do not fit x [1, 4, 24]",
                ),
                Shape(rope(&a, &angles, &angles, 1, 8), "rope: x: expected 3 axes, got shape [2, 3]"),
                Type(rope(&x, &z.half(&[4, 4]), &angles, 3, 8), "rope: cosines are f16, expected f32"),
            ],
        ),
    ]
}

pub fn mixtures(z: &Zeros) -> Vec<Row> {
    let (logits, x, weights) = (z.f(&[3, 4]), z.f(&[3, 6]), z.f(&[3, 2]));
    let (ids, gate_up, down) = (z.int(&[3, 2]), z.f(&[4, 10, 6]), z.f(&[4, 6, 5]));
    let mixed = |x: &Tensor, ids: &Tensor, weights: &Tensor, down: &Tensor| {
        experts(x, ids, weights, [&gate_up, down], Gate::Silu)
    };
    vec![
        (
            "route::Route",
            vec![
                Shape(
                    route(&logits, 5, true).map(|(weights, _)| weights),
                    "route: logits have shape [3, 4], expected a last axis of experts, and to choose between 1 and all of them, not 5",
                ),
                Shape(
                    route(&logits, 0, true).map(|(weights, _)| weights),
                    "route: logits have shape [3, 4], expected a last axis of experts, and to choose between 1 and all of them, not 0",
                ),
                Type(
                    route(&z.int(&[3, 4]), 2, true).map(|(weights, _)| weights),
                    "route: logits is u32, expected f32, f16 or bf16",
                ),
            ],
        ),
        (
            "balance_loss::BalanceLoss",
            vec![
                Shape(
                    balance_loss(&z.f(&[]), 1),
                    "balance_loss: logits have shape [], expected a last axis of experts, and to choose between 1 and all of them, not 1",
                ),
                Type(balance_loss(&ids, 2), "balance_loss: logits is u32, expected f32, f16 or bf16"),
            ],
        ),
        (
            "experts::Experts",
            vec![
                Shape(
                    mixed(&z.f(&[3, 5]), &ids, &weights, &down),
                    "experts: the last axis of x [3, 5] is 5, expected 6, the last of gate_up [4, 10, 6]",
                ),
                Shape(
                    mixed(&x, &ids, &weights, &z.f(&[4, 6, 10])),
                    "experts: gate_up [4, 10, 6] and down [4, 6, 10], expected (E, 2H, C) and (E, C, H)",
                ),
                Shape(
                    mixed(&x, &ids, &z.f(&[3, 1]), &down),
                    "experts: ids [3, 2] and weights [3, 1], expected the same shape with K per token of x [3, 6]",
                ),
                Shape(
                    mixed(&z.f(&[2, 6]), &ids, &weights, &down),
                    "experts: ids [3, 2] and weights [3, 2], expected the same shape with K per token of x [2, 6]",
                ),
                Type(mixed(&x, &weights, &weights, &down), "experts: ids is f32, expected u32 or i32"),
                Type(
                    mixed(&x, &ids, &z.half(&[3, 2]), &down),
                    "experts: weights is f16, but x is f32; convert one with `to_dtype`",
                ),
            ],
        ),
    ]
}

pub fn attentions(z: &Zeros) -> Vec<Row> {
    let (causal, a) = (AttentionOptions::causal(), z.f(&[2, 3]));
    let (q, k) = (z.f(&[1, 3, 4, 8]), z.f(&[1, 2, 4, 8]));
    vec![
        (
            "attention::Attention",
            vec![
                Shape(
                    attention(&q, &k, &k, causal.clone()),
                    "attention: q [1, 3, 4, 8], k [1, 2, 4, 8], v [1, 2, 4, 8]: expected q (B,H,T,D) and k, v (B,KH,S,D) with H a \
                     multiple of KH",
                ),
                Shape(
                    attention(&a, &k, &k, causal.clone()),
                    "attention: q: expected 4 axes, got shape [2, 3]",
                ),
                Type(
                    attention(&k, &z.half(&[1, 2, 4, 8]), &k, causal.clone()),
                    "attention: k is f16, but q is f32; convert one with `to_dtype`",
                ),
            ],
        ),
        (
            "attention::AttentionQkv",
            vec![
                Shape(
                    attention_qkv(&z.f(&[1, 4, 21]), 2, 1, causal.clone()),
                    "attention: qkv [1, 4, 21] with 2 query and 1 key heads: expected (B,T,(2+2*1)*D) and query heads a multiple \
                     of key heads",
                ),
                Shape(
                    attention_qkv(&a, 2, 1, causal.clone()),
                    "attention: qkv: expected 3 axes, got shape [2, 3]",
                ),
                Type(
                    attention_qkv(&z.int(&[1, 4, 20]), 2, 1, causal.clone()),
                    "attention: qkv is u32, expected f32, f16 or bf16",
                ),
            ],
        ),
    ]
}
