//! Tests every operation on NaN, infinities, signed zeros, the largest number and subnormal numbers. Results, gradients and the f64 reference are
//! compared with PyTorch's. `tools/golden_special.py` writes the file and documents its contents.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests, which clippy takes for production code

use super::prelude::*;
use super::*;
use crate::ops::attention::{Attention, AttentionOptions, AttentionQkv};
use crate::ops::elementwise::{BINARY, Binary, UNARY, Unary};
use crate::random::DropMask;
use crate::suite::test_device;
use netcl_device::Settings;
use safetensors::SafeTensors;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Operations without a case in the file, and the test that covers them.
const ELSEWHERE: [(&str, &str); 4] = [
    // They equal those of batch norm, which has cases.
    ("batch_norm::BatchStatistics", "batch_statistics_are_those_of_batch_norm"),
    // PyTorch draws by different rules.
    ("choose::Choose", "choose_says_what_is_no_number_and_where_no_token_is_left"),
    // PyTorch rejects invalid distributions after reading from the device; here their draws are 0xffffffff.
    ("multinomial::Multinomial", "multinomial_of_no_distribution_draws_nothing"),
    // The generator determines which elements are dropped; PyTorch's result is the product with its mask.
    ("dropout::Dropout", "dropout_is_the_product_with_its_mask"),
];

/// The operations of each test below; every operation is in one of them.
const ELEMENTWISE: [&str; 3] = ["elementwise::Unary", "elementwise::Binary", "comparison"];
const LAYOUT: [&str; 15] = [
    "view::Reshape",
    "view::Permute",
    "view::Slice",
    "view::Expand",
    "join::Cat",
    "cast::Cast",
    "mask::Where",
    "mask::MaskedFill",
    "embedding::Embedding",
    "gather::Gather",
    "gather::Scatter",
    "gather::ScatterAdd",
    "decode_embedding::DecodeEmbedding",
    "paged_cache::CacheAppend",
    "paged_cache::CacheGather",
];
const ROWS: [&str; 13] = [
    "reduce::Sum",
    "reduce::Max",
    "argmax::ArgMax",
    "topk::TopK",
    "sort::Sort",
    "cumsum::CumSum",
    "softmax::Softmax",
    "softmax::LogSoftmax",
    "logsumexp::LogSumExp",
    "layer_norm::LayerNorm",
    "rms_norm::RmsNorm",
    "residual_norm::ResidualLayerNorm",
    "residual_norm::ResidualRmsNorm",
];
const PRODUCTS: [&str; 9] = [
    "matmul::MatMul",
    "matmul::Linear",
    "feed_forward::LinearAdd",
    "feed_forward::LinearResidual",
    "feed_forward::FeedForward",
    "fused_linear::FusedLinear",
    "cross_entropy::CrossEntropy",
    "linear_cross_entropy::LinearCrossEntropy",
    "optimizer::Update",
];
const ATTENTION: [&str; 3] =
    ["attention::Attention", "attention::AttentionQkv", "decode_attention::DecodeAttention"];
const DECODERS: [&str; 5] =
    ["gated::Gated", "rope::Rope", "route::Route", "balance_loss::BalanceLoss", "experts::Experts"];

const IMAGES: [&str; 6] = [
    "conv::Conv2d",
    "conv::ConvTranspose2d",
    "pool::MaxPool2d",
    "pool::AvgPool2d",
    "batch_norm::BatchNorm",
    "add_relu::AddRelu",
];

struct File {
    bytes: Vec<u8>,
    cases: BTreeMap<String, Value>,
}

impl File {
    fn open() -> Self {
        let path =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/special_values.safetensors");
        let bytes = std::fs::read(path).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let cases = header.metadata().clone().unwrap();
        let cases = cases.into_iter().map(|(k, v)| (k, serde_json::from_str(&v).unwrap())).collect();
        Self { bytes, cases }
    }
}

/// Returns elements and shape of one tensor of the file; integers as floats.
fn read(file: &SafeTensors<'_>, name: &str) -> Option<(Array, DType)> {
    let view = file.tensor(name).ok()?;
    let words = view.data().chunks_exact(4).map(|c| <[u8; 4]>::try_from(c).unwrap());
    let (data, dtype): (Vec<f64>, _) = match view.dtype() {
        safetensors::Dtype::F32 => (words.map(|w| f32::from_le_bytes(w).into()).collect(), DType::F32),
        safetensors::Dtype::I32 => (words.map(|w| i32::from_le_bytes(w).into()).collect(), DType::I32),
        other => panic!("{name} is {other:?}"),
    };
    Some((Array { shape: view.shape().into(), data }, dtype))
}

/// One case on one device and storage type.
struct Case<'a> {
    name: String,
    file: &'a SafeTensors<'a>,
    key: &'a str,
    attributes: &'a Value,
    device: &'a Device,
    dtype: DType,
    failures: &'a mut Vec<String>,
}

/// Maximum errors of a result, and whether the sign of a zero counts.
#[derive(Clone, Copy)]
struct Bound {
    /// Error relative to the element's size.
    relative: f64,
    /// Error relative to the largest ordinary number of the result: cancellation in sums leaves rounding of that size.
    absolute: f64,
    signs: bool,
}

fn near(got: f64, expected: f64, scale: f64, bound: Bound) -> bool {
    if expected.is_nan() || expected.is_infinite() {
        return got == expected || got.is_nan() && expected.is_nan();
    }
    let exact_zero = expected == 0.0 && got == 0.0;
    if exact_zero && bound.signs {
        return got.is_sign_negative() == expected.is_sign_negative();
    }
    // One unit of the subnormal numbers.
    (got - expected).abs() <= bound.relative * expected.abs() + bound.absolute * scale + 1.5e-45
}

impl Case<'_> {
    fn number(&self, name: &str) -> f32 {
        number(&self.attributes[name])
    }
    fn size(&self, name: &str) -> usize {
        usize::try_from(self.attributes[name].as_u64().unwrap()).unwrap()
    }
    fn sizes(&self, name: &str) -> Vec<usize> {
        self.attributes[name].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect()
    }
    fn flag(&self, name: &str) -> bool {
        self.attributes[name].as_bool().unwrap_or_default()
    }
    fn text(&self, name: &str) -> &str {
        self.attributes[name].as_str().unwrap()
    }
    fn golden(&self, what: &str) -> Option<(Array, DType)> {
        read(self.file, &format!("{}.{what}", self.key))
    }
    fn input(&self, i: usize) -> (Array, DType) {
        self.golden(&format!("in.{i}")).unwrap_or_else(|| panic!("{}: no input {i}", self.name))
    }
    /// Uploads an input, as a parameter if the file has its gradient.
    fn upload(&self, i: usize) -> Tensor {
        let (array, dtype) = self.input(i);
        let tensor = self.place(&array, dtype);
        match self.golden(&format!("grad.{i}")) {
            Some(_) => tensor.parameter(&format!("input {i}")),
            None => tensor,
        }
    }
    fn place(&self, array: &Array, dtype: DType) -> Tensor {
        if dtype == DType::I32 {
            let data: Vec<i32> = array.data.iter().map(|v| *v as i32).collect();
            return Tensor::from_i32(self.device, array.shape.clone(), &data).unwrap();
        }
        let data: Vec<f32> = array.data.iter().map(|v| *v as f32).collect();
        Tensor::from_f32(self.device, array.shape.clone(), &data, self.dtype).unwrap()
    }
    fn bound(&self, what: &str) -> Bound {
        let exact = self.text("op").starts_with("elementwise") || self.text("op").starts_with("view");
        let unit = f64::from(f32::EPSILON).max(self.dtype.epsilon());
        let half = self.dtype != DType::F32;
        let absolute = if exact && !half { 0.0 } else { 20.0 * unit };
        // A gradient that underflows to zero has the sign of its last factor.
        let signs = exact && !what.starts_with("gradient");
        let relative = self.attributes["relative"].as_f64().unwrap_or(80.0 * unit);
        Bound {
            relative: if half { 4.0 * unit } else { relative },
            absolute: if half { 2.0 * unit } else { absolute },
            signs,
        }
    }
    fn compare(&mut self, what: &str, of: &str, got: &[f64], shape: &Shape) {
        let (expected, _) = self.golden(of).unwrap_or_else(|| panic!("{}: no {of}", self.name));
        if *shape != expected.shape {
            self.failures
                .push(format!("{}: {what} has shape {shape}, expected {}", self.name, expected.shape));
            return;
        }
        let ordinary = expected.data.iter().filter(|v| v.abs() < 1e20);
        let scale = ordinary.fold(1e-3f64, |m, v| m.max(v.abs()));
        let bound = self.bound(what);
        let wrong: Vec<_> = got
            .iter()
            .zip(&expected.data)
            .enumerate()
            .filter(|(_, (g, e))| !near(**g, **e, scale, bound))
            .collect();
        if !wrong.is_empty() {
            let inputs = (0..2).filter_map(|k| self.golden(&format!("in.{k}"))).collect::<Vec<_>>();
            let at =
                |i: usize| {
                    inputs
                        .iter()
                        .map(|(a, _)| {
                            if a.data.len() == got.len() { format!("{:e}", a.data[i]) } else { "…".into() }
                        })
                        .collect::<Vec<_>>()
                        .join(", ")
                };
            let list: Vec<_> = wrong
                .iter()
                .take(6)
                .map(|(i, (g, e))| format!("[{i}] of ({}) is {g:e}, PyTorch has {e:e}", at(*i)))
                .collect();
            self.failures.push(format!(
                "{}: {what}: {} of {} differ: {}",
                self.name,
                wrong.len(),
                got.len(),
                list.join("; ")
            ));
        }
    }
    fn compare_tensor(&mut self, what: &str, of: &str, got: &Tensor) {
        let values: Vec<f64> = match got.dtype() {
            DType::U32 => got.to_u32().unwrap().into_iter().map(f64::from).collect(),
            _ => got.to_vec().unwrap().into_iter().map(f64::from).collect(),
        };
        self.compare(what, of, &values, got.shape());
    }

    /// Checks forward, backward and reference of one operation.
    fn check<O: MultiOp<N, M>, const N: usize, const M: usize>(&mut self, op: &O) {
        let inputs: [Tensor; N] = std::array::from_fn(|i| self.upload(i));
        let ys = op.clone().apply(inputs.each_ref()).unwrap_or_else(|e| panic!("{}: {e}", self.name));
        for (i, y) in ys.iter().enumerate() {
            self.compare_tensor("result", &format!("out.{i}"), y);
        }
        if ys.iter().any(Tensor::requires_grad) {
            // Indices do not have gradients.
            let floats = ys.iter().enumerate().filter(|(_, y)| y.dtype().is_float());
            let dys: Vec<(&Tensor, Tensor)> = floats
                .map(|(i, y)| {
                    let (dy, _) = self.golden(&format!("dout.{i}")).unwrap();
                    let dy: Vec<f32> = dy.data.iter().map(|v| *v as f32).collect();
                    (y, Tensor::from_f32(self.device, y.shape(), &dy, y.dtype()).unwrap())
                })
                .collect();
            crate::tape::backward_all(&dys.iter().map(|(y, dy)| (*y, dy)).collect::<Vec<_>>()).unwrap();
            for (i, input) in inputs.iter().enumerate().filter(|(_, x)| x.requires_grad()) {
                let grad = input.grad().unwrap_or_else(|| panic!("{}: input {i} got no gradient", self.name));
                self.compare_tensor(&format!("gradient {i}"), &format!("grad.{i}"), &grad);
            }
        }
        if self.attributes["wide"].as_bool() == Some(false) || self.dtype != DType::F32 {
            return;
        }
        let hosts: [Array; N] = std::array::from_fn(|i| self.input(i).0);
        for (i, y) in op.reference(hosts.each_ref()).iter().enumerate() {
            let dtype = ys[i].dtype();
            let rounded: Vec<f64> =
                y.data.iter().map(|v| if dtype.is_float() { dtype.round(*v) } else { *v }).collect();
            self.compare("reference", &format!("out.{i}"), &rounded, &y.shape);
        }
    }

    fn run(&mut self) {
        match self.text("op") {
            "elementwise::Unary" => {
                let row = UNARY.iter().find(|r| r.name == self.text("row")).unwrap();
                let scalars = self.attributes["scalars"].as_array().unwrap().iter().map(number).collect();
                self.check(&Unary { row, scalars });
            }
            "elementwise::Binary" => {
                let row = BINARY.iter().find(|r| r.name == self.text("row")).unwrap();
                self.check(&Binary { row });
            }
            "comparison" => self.comparison(),
            "view::Reshape" => self.check(&view::Reshape { shape: self.sizes("shape").into(), dense: false }),
            "view::Permute" => self.check(&view::Permute { axes: self.sizes("axes") }),
            "view::Slice" => {
                self.check(&view::Slice { axis: 0, range: self.size("start")..self.size("end") })
            }
            "view::Expand" => self.check(&view::Expand { shape: self.sizes("shape").into() }),
            "join::Cat" => self.check(&join::Cat { axis: 0 }),
            "cast::Cast" => {
                let dtype = if self.text("to") == "f16" { DType::F16 } else { DType::Bf16 };
                self.check(&cast::Cast { dtype });
            }
            "mask::Where" => self.check(&mask::Where),
            "mask::MaskedFill" => {
                let value = self.text("value").parse().unwrap();
                self.check(&mask::MaskedFill { value });
            }
            "embedding::Embedding" => self.check(&embedding::Embedding),
            "gather::Gather" => self.check(&gather::Gather { axis: 1 }),
            "gather::Scatter" => self.check(&gather::Scatter { axis: 1 }),
            "gather::ScatterAdd" => self.check(&gather::ScatterAdd { axis: 1 }),
            "sort::Sort" => self.check(&sort::Sort { descending: self.flag("descending") }),
            "cumsum::CumSum" => self.check(&cumsum::CumSum),
            "reduce::Max" => self.check(&reduce::Max { axes: self.sizes("axes"), keep: self.flag("keep") }),
            "reduce::Sum" => {
                let (axes, keep, mean) = (self.sizes("axes"), self.flag("keep"), self.flag("mean"));
                self.check(&reduce::Sum { axes, keep, mean, dtype: None });
            }
            "argmax::ArgMax" => self.check(&argmax::ArgMax),
            "topk::TopK" => self.check(&topk::TopK { k: self.size("k") }),
            "softmax::Softmax" => self.check(&softmax::Softmax),
            "softmax::LogSoftmax" => self.check(&softmax::LogSoftmax),
            "logsumexp::LogSumExp" => self.check(&logsumexp::LogSumExp),
            "layer_norm::LayerNorm" => self.check(&layer_norm::LayerNorm { eps: self.number("eps") }),
            "rms_norm::RmsNorm" => self.check(&rms_norm::RmsNorm { eps: self.number("eps") }),
            "residual_norm::ResidualLayerNorm" => {
                self.check(&residual_norm::ResidualLayerNorm { eps: self.number("eps") });
            }
            "residual_norm::ResidualRmsNorm" => {
                self.check(&residual_norm::ResidualRmsNorm { eps: self.number("eps") });
            }
            _ => self.run_product(),
        }
    }
    fn run_product(&mut self) {
        match self.text("op") {
            "matmul::MatMul" => self.check(&matmul::MatMul),
            "matmul::Linear" => self.check(&matmul::Linear),
            "feed_forward::LinearAdd" => self.check(&feed_forward::LinearAdd),
            "feed_forward::LinearResidual" => self.check(&feed_forward::LinearResidual),
            "gated::Gated" => {
                self.check(&gated::Gated { gate: gated::Gate::named(self.text("act")).unwrap() })
            }
            "rope::Rope" => self.check(&rope::Rope { heads: 1, size: 8 }),
            "route::Route" => {
                self.check(&route::Route { k: self.size("k"), renormalise: self.flag("renormalise") });
            }
            "balance_loss::BalanceLoss" => self.check(&balance_loss::BalanceLoss { k: self.size("k") }),
            "experts::Experts" => self.check(&experts::Experts { gate: gated::Gate::Silu }),
            "feed_forward::FeedForward" => self.check(&feed_forward::FeedForward { recompute: false }),
            "cross_entropy::CrossEntropy" => self.cross_entropy(),
            "linear_cross_entropy::LinearCrossEntropy" => {
                self.check(&linear_cross_entropy::LinearCrossEntropy::default());
            }
            "attention::Attention" => self.check(&Attention { options: self.attention() }),
            "attention::AttentionQkv" => {
                self.check(&AttentionQkv { options: self.attention(), heads: 1, kv_heads: 1 });
            }
            "fused_linear::FusedLinear" => {
                self.check(&fused_linear::FusedLinear::gated_after_layer_norm(1e-5))
            }
            "decode_embedding::DecodeEmbedding" => {
                self.check(&decode_embedding::DecodeEmbedding { scale: 2.0, placed: true });
            }
            "paged_cache::CacheAppend" => self.check(&paged_cache::CacheAppend { first: 1 }),
            "paged_cache::CacheGather" => {
                let (first, count, size, dtype) = (1, 3, 5, crate::DType::F32);
                self.check(&paged_cache::CacheGather { first, count, size, dtype });
            }
            "decode_attention::DecodeAttention" => {
                self.check(&decode_attention::DecodeAttention::of_one_head())
            }
            "optimizer::Update" => self.optimizer(),
            _ => self.run_images(),
        }
    }
    fn run_images(&mut self) {
        let options = conv::Conv2dOptions::default();
        let windows = pool::Windows::of(2);
        match self.text("op") {
            "conv::Conv2d" => self.check(&conv::Conv2d { options: options.padding(1), bias: true }),
            "conv::ConvTranspose2d" => {
                self.check(&conv::ConvTranspose2d { options: Default::default(), bias: true })
            }
            "pool::MaxPool2d" => self.check(&pool::MaxPool2d { windows }),
            "add_relu::AddRelu" => self.check(&add_relu::AddRelu),
            "pool::AvgPool2d" => self.check(&pool::AvgPool2d { windows, include_pad: true }),
            "batch_norm::BatchNorm" => {
                self.check(&batch_norm::BatchNorm { eps: 1e-5, activation: batch_norm::Activation::None });
            }
            other => panic!("{}: no op {other}", self.name),
        }
    }
    fn attention(&self) -> AttentionOptions {
        AttentionOptions { causal: self.flag("causal"), ..AttentionOptions::default() }
    }
    fn cross_entropy(&mut self) {
        use cross_entropy::{CrossEntropy, Reduction};
        let reduction = if self.text("reduction") == "none" { Reduction::None } else { Reduction::Mean };
        self.check(&CrossEntropy {
            label_smoothing: self.number("smoothing"),
            reduction,
            ..CrossEntropy::default()
        });
    }
    fn comparison(&mut self) {
        let (a, b) = (self.upload(0), self.upload(1));
        let y = match self.text("row") {
            "eq" => a.eq(&b),
            "lt" => a.lt(&b),
            "le" => a.le(&b),
            "gt" => a.gt(&b),
            _ => a.ge(&b),
        };
        self.compare_tensor("result", "out.0", &y.unwrap());
    }
    fn optimizer(&mut self) {
        use optimizer::{AdamW, Entry, Rule, Sgd, Update};
        use std::sync::Arc;
        let beta = |i: usize| self.attributes["betas"][i].as_f64().unwrap();
        let rule: Arc<dyn Rule> = match self.text("rule") {
            "AdamW" => Arc::new(AdamW { betas: [beta(0), beta(1)], eps: f64::from(self.number("eps")) }),
            _ => Arc::new(Sgd { momentum: 0.9, dampening: 0.0, nesterov: false }),
        };
        let (start, _) = self.input(0);
        let param = self.place(&start, DType::F32).parameter("p");
        let decay = self.attributes["weight_decay"].as_f64().unwrap_or(0.0);
        let entry = Entry { param: param.clone(), weight_decay: decay, lr_scale: 1.0 };
        let mut update = Update::new(rule, vec![entry], None).unwrap();
        let (grads, _) = self.input(1);
        let mut all = Vec::new();
        for row in grads.rows() {
            param.set_grad(Some(self.place(&Array::new([row.len()], row.to_vec()), DType::F32)));
            update.step(f64::from(self.number("lr")), None).unwrap();
            all.extend(param.to_vec().unwrap().into_iter().map(f64::from));
        }
        self.compare("parameter", "out.0", &all, &grads.shape);
    }
}

/// Parses a number; JSON does not have infinities.
fn number(value: &Value) -> f32 {
    value.as_f64().map_or_else(|| value.as_str().unwrap().parse().unwrap(), |v| v as f32)
}

/// Returns whether logits overflow: above 2.3e38 they overflow in units of log2(e), in which GPUs hold a row of them, and give NaN.
fn overflows_on_gpus(key: &str, device: &Device) -> bool {
    key.starts_with("cross_entropy/mean") && key.contains("_3.4028") && !device.capabilities().is_cpu()
}

/// Runs the cases of these operations on the test device and on the simulated GPU, whose kernels differ, and reports all differences.
fn check(ops: &[&str]) {
    let file = File::open();
    let tensors = SafeTensors::deserialize(&file.bytes).unwrap();
    let (mut failures, mut cases) = (Vec::new(), 0);
    for device in [test_device().unwrap(), Device::open("sim", &Settings::default()).unwrap()] {
        let device = &device;
        for (key, attributes) in file.cases.iter().filter(|(_, a)| ops.contains(&a["op"].as_str().unwrap())) {
            let half = attributes["dtypes"].is_array();
            let dtypes: &[DType] = if half { &[DType::F16, DType::Bf16] } else { &[DType::F32] };
            for dtype in dtypes.iter().copied().filter(|_| !overflows_on_gpus(key, device)) {
                let name = format!("{}: {key} {dtype}", device.capabilities().name);
                Case { name, file: &tensors, key, attributes, device, dtype, failures: &mut failures }.run();
                cases += 1;
            }
        }
    }
    assert!(cases > 0);
    assert!(failures.is_empty(), "{} of {cases} cases differ:\n{}", failures.len(), failures.join("\n"));
}

/// `relu(NaN)`, `clamp(NaN)` and `maximum(NaN, 1)` are NaN; `abs` has gradient 0 at 0, and so does `x^0`; `tanh(inf)` is 1.
#[test]
fn elementwise_ops_and_comparisons_agree_with_pytorch_on_special_values() {
    check(&ELEMENTWISE);
}

#[test]
fn views_masks_casts_and_embeddings_agree_with_pytorch_on_special_values() {
    check(&LAYOUT);
}

/// The largest of 1, NaN and 3 is NaN.
#[test]
fn reductions_softmax_and_norms_agree_with_pytorch_on_special_values() {
    check(&ROWS);
}

#[test]
fn products_losses_and_optimizers_agree_with_pytorch_on_special_values() {
    check(&PRODUCTS);
}

/// A row whose scores are all -infinity is NaN.
#[test]
fn attention_agrees_with_pytorch_on_special_values() {
    check(&ATTENTION);
}

#[test]
fn rotary_positions_gates_and_mixtures_agree_with_pytorch_on_special_values() {
    check(&DECODERS);
}

/// A NaN is the maximum of its window. It reaches every sum that contains it, and nothing else.
#[test]
fn images_agree_with_pytorch_on_special_values() {
    check(&IMAGES);
}

#[test]
fn every_op_has_special_values() {
    let file = File::open();
    let in_file: BTreeSet<&str> = file.cases.values().map(|a| a["op"].as_str().unwrap()).collect();
    let tested: Vec<&str> =
        [&ELEMENTWISE[..], &LAYOUT, &ROWS, &PRODUCTS, &ATTENTION, &DECODERS, &IMAGES].concat();
    assert_eq!(
        tested.iter().copied().collect::<BTreeSet<_>>(),
        in_file,
        "each op of the file is in one test"
    );
    assert_eq!(tested.len(), in_file.len(), "an op is in two tests");
    for op in OPS {
        let elsewhere = ELSEWHERE.iter().any(|(name, _)| *name == op.name);
        assert!(
            in_file.contains(op.name) != elsewhere,
            "{}: expected cases in tools/golden_special.py, or a line in ELSEWHERE that says where it is tested, and not both",
            op.name
        );
    }
    let source = include_str!("special_values.rs");
    for (op, test) in ELSEWHERE {
        assert!(OPS.iter().any(|o| o.name == op) && source.contains(&format!("fn {test}()")), "{op}: {test}");
    }
    let rows: BTreeSet<&str> = file.cases.values().filter_map(|a| a["row"].as_str()).collect();
    for row in UNARY.iter().map(|r| r.name).chain(BINARY.iter().map(|r| r.name)) {
        assert!(
            rows.contains(row),
            "element-wise op {row} does not have special values in tools/golden_special.py"
        );
    }
}

/// Tests that mean and variance alone have the same bits as those of batch norm.
#[test]
fn batch_statistics_are_those_of_batch_norm() {
    const SPECIAL: [f32; 8] =
        [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, f32::MAX, f32::MIN_POSITIVE, 1e-40, 0.5];
    for device in [test_device().unwrap(), Device::open("sim", &Settings::default()).unwrap()] {
        let (n, c, pixels) = (3, SPECIAL.len(), 40);
        let value = |i: usize| match (i % pixels, i / pixels) {
            // One special value in each channel of the second image.
            (7, plane) if plane / c == 1 => SPECIAL[plane % c],
            _ => (i * 37 % 101) as f32 / 50.0 - 1.0,
        };
        let values: Vec<f32> = (0..n * c * pixels).map(value).collect();
        let x = Tensor::from_f32(&device, [n, c, pixels], &values, DType::F32).unwrap();
        let ones = Tensor::ones(&device, [c], DType::F32).unwrap();
        let [_, mean, variance] = batch_norm::batch_norm(&x, &ones, &ones, 1e-5).unwrap();
        let expected = [mean.to_vec().unwrap(), variance.to_vec().unwrap()].concat();
        let found = batch_norm::batch_statistics(&x).unwrap().to_vec().unwrap();
        let bits = |all: &[f32]| -> Vec<u32> {
            all.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
        };
        assert_eq!(bits(&found), bits(&expected));
        assert!(found.iter().any(|v| v.is_nan()) && found[c - 1].is_finite());
    }
}

/// Tests that dropping does not hide NaN and infinities: 0 times them is NaN.
#[test]
fn dropout_is_the_product_with_its_mask() {
    const SPECIAL: [f32; 6] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, f32::MAX, 1e-40];
    for device in [test_device().unwrap(), Device::open("sim", &Settings::default()).unwrap()] {
        let values: Vec<f32> = SPECIAL.into_iter().cycle().take(150).collect();
        let mask = DropMask { probability: 0.3, seed: 7, offset: 0, counter: None };
        let drop = |values: &[f32]| {
            let x = Tensor::from_f32(&device, [values.len()], values, DType::F32).unwrap();
            dropout::masked(&x, mask.clone()).unwrap().to_vec().unwrap()
        };
        let (kept, got) = (drop(&[1.0; 150]), drop(&values));
        assert!(kept.contains(&0.0) && kept.iter().any(|k| *k > 1.0));
        for (i, ((k, v), y)) in kept.iter().zip(&values).zip(&got).enumerate() {
            let expected = k * v;
            assert!(*y == expected || y.is_nan() && expected.is_nan(), "[{i}]: {v} times {k} is {y}");
        }
    }
}

#[test]
fn multinomial_of_no_distribution_draws_nothing() {
    for device in [test_device().unwrap(), Device::open("sim", &Settings::default()).unwrap()] {
        let rows = [f32::NAN, f32::INFINITY, 0.0, -0.0, 1e-40].map(|v| [v, v, 0.0]);
        let weights = Tensor::from_f32(&device, [5, 3], rows.as_flattened(), DType::F32).unwrap();
        let mut generator = crate::random::Generator::new(1);
        let drawn = weights.multinomial(2, &mut generator).unwrap().to_u32().unwrap();
        assert_eq!(drawn[..8], [u32::MAX; 8]);
        assert!(drawn[8..].iter().all(|i| *i < 2), "{drawn:?}");
    }
}

/// Tests sampling with NaN and infinite logits by netcl's own rule, because PyTorch does not have this operation.
#[test]
fn choose_says_what_is_no_number_and_where_no_token_is_left() {
    use super::choose::{Chooser, NO_NUMBER, NONE_LEFT, Rules, SamplingRule, Texts};
    let device = test_device().unwrap();
    for rules in [Rules::greedy(), Rules::new(&[SamplingRule::TopK(5)]).unwrap()] {
        for vocab in [9, 2100] {
            let mut logits = vec![0.5; 4 * vocab];
            (logits[2], logits[vocab + 4]) = (f32::NAN, f32::INFINITY);
            logits[2 * vocab..3 * vocab].fill(f32::NEG_INFINITY);
            logits[4 * vocab - 1] = 0.75;
            let by = Chooser::new(&device, &rules, 4, vocab, None).unwrap().unwrap();
            let state = Texts::new(&device, 4, 1).unwrap();
            let logits = Tensor::from_f32(&device, [4, vocab], &logits, DType::F32).unwrap();
            let chosen = state.choose(&logits, &by).unwrap().to_u32().unwrap();
            assert_eq!(chosen, [NO_NUMBER, NO_NUMBER, NONE_LEFT, vocab as u32 - 1]);
        }
    }
}
