//! Compares ops with PyTorch. `tools/golden.py` writes the files and describes their contents.
//!
//! Expected values were computed in float64 from the same float32 inputs, so a difference is only netcl's rounding error.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests, which clippy takes for production code

use netcl_tensor::ops::attention::AttentionOptions;
use netcl_tensor::ops::batch_norm::{Running, batch_norm, batch_norm_inference};
use netcl_tensor::ops::conv::{Conv2dOptions, ConvTranspose2dOptions, conv_transpose2d, conv2d};
use netcl_tensor::ops::cross_entropy::{CrossEntropy, Reduction};
use netcl_tensor::ops::gated::Gate;
use netcl_tensor::ops::pool::{Windows, avg_pool2d, max_pool2d};
use netcl_tensor::ops::rearrange::{Resize, interpolate};
use netcl_tensor::suite::test_device;
use netcl_tensor::{DType, Device, Tensor, ops};
use safetensors::SafeTensors;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// The file of one op.
struct Goldens {
    device: Device,
    bytes: Vec<u8>,
    attributes: BTreeMap<String, Value>,
}

/// A case: its inputs on the device, and the expected values.
struct Case<'a> {
    name: &'a str,
    attributes: &'a Value,
    file: &'a SafeTensors<'a>,
    inputs: BTreeMap<String, Tensor>,
}

fn floats(file: &SafeTensors<'_>, name: &str) -> Vec<f64> {
    let view = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
    match view.dtype() {
        safetensors::Dtype::F64 => {
            view.data().chunks_exact(8).map(|c| f64::from_le_bytes(c.try_into().unwrap())).collect()
        }
        safetensors::Dtype::F32 => {
            view.data().chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap()).into()).collect()
        }
        other => panic!("{name} is {other:?}"),
    }
}

impl Goldens {
    fn open(op: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/goldens/{op}.safetensors"));
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let attributes = header.metadata().clone().unwrap_or_default();
        let attributes =
            attributes.into_iter().map(|(k, v)| (k, serde_json::from_str(&v).unwrap())).collect();
        Self { device: test_device().unwrap(), bytes, attributes }
    }

    /// Runs every case: `forward` computes the output from the inputs, and gradients come from the tape. The allowed difference is
    /// `tolerance` times the largest expected value of each tensor.
    fn check(
        &self,
        tolerance: impl Fn(&str) -> f64,
        forward: impl Fn(&Case<'_>) -> netcl_tensor::Result<Tensor>,
    ) {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        assert!(!self.attributes.is_empty());
        for (name, attributes) in &self.attributes {
            let case = Case { name, attributes, file: &file, inputs: self.inputs(&file, name) };
            let out = forward(&case).unwrap_or_else(|e| panic!("{name}: {e}"));
            let tolerance = tolerance(name);
            case.compare("out", &out, tolerance);
            let dout = self.upload(&file, &format!("{name}.dout")).reshape(out.shape()).unwrap();
            out.backward_with(&dout).unwrap_or_else(|e| panic!("{name}: {e}"));
            for (input, tensor) in &case.inputs {
                if tensor.dtype() == DType::F32 {
                    let grad = tensor.grad().unwrap_or_else(|| panic!("{name}: {input} got no gradient"));
                    case.compare(&format!("grad.{input}"), &grad, tolerance);
                }
            }
        }
    }

    fn inputs(&self, file: &SafeTensors<'_>, case: &str) -> BTreeMap<String, Tensor> {
        let prefix = format!("{case}.in.");
        let names = file.names().into_iter().filter_map(|n| n.strip_prefix(&prefix).map(str::to_owned));
        names
            .map(|n| (n.clone(), self.upload(file, &format!("{prefix}{n}")).parameter_if_float(&n)))
            .collect()
    }

    fn upload(&self, file: &SafeTensors<'_>, name: &str) -> Tensor {
        let view = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        let dtype = match view.dtype() {
            safetensors::Dtype::F32 => DType::F32,
            safetensors::Dtype::I32 => DType::I32,
            other => panic!("{name} is {other:?}"),
        };
        Tensor::from_bytes(&self.device, view.shape(), view.data(), dtype).unwrap()
    }
}

trait ParameterIfFloat {
    fn parameter_if_float(self, name: &str) -> Tensor;
}

impl ParameterIfFloat for Tensor {
    fn parameter_if_float(self, name: &str) -> Tensor {
        if self.dtype().is_float() { self.parameter(name) } else { self }
    }
}

impl Case<'_> {
    fn input(&self, name: &str) -> &Tensor {
        self.inputs.get(name).unwrap_or_else(|| panic!("{}: no input {name}", self.name))
    }
    fn f32(&self, name: &str) -> f32 {
        self.attributes[name].as_f64().unwrap_or_else(|| panic!("{}: no number {name}", self.name)) as f32
    }
    fn size(&self, name: &str) -> usize {
        self.attributes[name].as_u64().unwrap_or_else(|| panic!("{}: no size {name}", self.name)) as usize
    }
    fn flag(&self, name: &str) -> bool {
        self.attributes[name].as_bool().unwrap_or_else(|| panic!("{}: no flag {name}", self.name))
    }
    fn pair(&self, name: &str) -> [usize; 2] {
        let size = |i: usize| self.attributes[name][i].as_u64().map(|n| n as usize);
        [0, 1].map(|i| size(i).unwrap_or_else(|| panic!("{}: no pair {name}", self.name)))
    }
    fn conv2d(&self) -> Conv2dOptions {
        let [stride, padding, dilation] = ["stride", "padding", "dilation"].map(|name| self.pair(name));
        Conv2dOptions { stride, padding, dilation, groups: self.size("groups") }
    }
    fn text(&self, name: &str) -> &str {
        self.attributes[name].as_str().unwrap_or_else(|| panic!("{}: no text {name}", self.name))
    }
    fn axis(&self, name: &str) -> isize {
        let axis = self.attributes[name].as_i64().unwrap_or_else(|| panic!("{}: no axis {name}", self.name));
        isize::try_from(axis).unwrap()
    }
    fn compare(&self, what: &str, got: &Tensor, tolerance: f64) {
        let name = format!("{}.{what}", self.name);
        assert_eq!(got.dims(), self.file.tensor(&name).unwrap().shape(), "{name}: shape");
        close(&name, &got.to_vec().unwrap(), &floats(self.file, &name), tolerance);
    }
}

/// Inputs and upstream gradients are about 1. If all expected values are below this, they cancelled.
const CANCELLED_BELOW: f64 = 1e-2;

/// Checks that every element is within `tolerance` times the largest expected one.
fn close(name: &str, got: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{name}: length");
    let scale = expected.iter().fold(CANCELLED_BELOW, |m, v| m.max(v.abs()));
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        let difference = (f64::from(*g) - e).abs();
        assert!(
            difference <= tolerance * scale,
            "{name}[{i}]: {g}, PyTorch has {e}: difference {difference:.2e}, largest {scale:.2e}"
        );
    }
}

#[test]
fn layer_norm() {
    // Rows around 1000: the f32 mean alone is off by 3e-5 of the standard deviation.
    let tolerance = |case: &str| if case == "offset" { 1e-4 } else { 5e-6 };
    Goldens::open("layer_norm").check(tolerance, |c| {
        ops::layer_norm::layer_norm(c.input("x"), c.input("gamma"), c.input("beta"), c.f32("eps"))
    });
}

#[test]
fn rms_norm() {
    Goldens::open("rms_norm")
        .check(|_| 5e-6, |c| ops::rms_norm::rms_norm(c.input("x"), c.input("gamma"), c.f32("eps")));
}

#[test]
fn embedding() {
    Goldens::open("embedding")
        .check(|_| 1e-6, |c| ops::embedding::embedding(c.input("weight"), c.input("ids")));
}

#[test]
fn softmax() {
    Goldens::open("softmax").check(|_| 2e-6, |c| c.input("x").softmax(c.axis("dim")));
}

#[test]
fn log_softmax() {
    Goldens::open("log_softmax").check(|_| 2e-6, |c| c.input("x").log_softmax(c.axis("dim")));
}

#[test]
fn gelu() {
    Goldens::open("gelu").check(
        |_| 2e-6,
        |c| match c.text("approximate") {
            "none" => c.input("x").gelu(),
            _ => c.input("x").gelu_tanh(),
        },
    );
}

#[test]
fn cross_entropy() {
    Goldens::open("cross_entropy").check(
        |_| 5e-6,
        |c| {
            let options = CrossEntropy {
                ignore_index: c.attributes["ignore_index"].as_i64().map(|v| i32::try_from(v).unwrap()),
                label_smoothing: c.f32("label_smoothing"),
                reduction: match c.text("reduction") {
                    "mean" => Reduction::Mean,
                    "sum" => Reduction::Sum,
                    _ => Reduction::None,
                },
                ..CrossEntropy::default()
            };
            ops::cross_entropy::cross_entropy(c.input("logits"), c.input("target"), options)
        },
    );
}

#[test]
fn attention() {
    // Scores in the hundreds have an f32 error of 1e-5, and so do their exponentials.
    // With one token, dq and dk are differences of equal sums.
    let tolerance = |case: &str| match case {
        "large" => 1e-4,
        "one_token" => 1e-5,
        _ => 5e-6,
    };
    Goldens::open("attention").check(tolerance, |c| {
        let options = AttentionOptions {
            causal: c.flag("causal"),
            scale: Some(c.f32("scale")),
            ..AttentionOptions::default()
        };
        ops::attention::attention(c.input("q"), c.input("k"), c.input("v"), options)
    });
}

#[test]
fn matmul() {
    Goldens::open("matmul").check(
        |_| 2e-6,
        |c| {
            let turned = |name, turn| {
                let x = c.input(name);
                if turn { x.transpose(-2, -1) } else { Ok(x.clone()) }
            };
            ops::matmul::matmul(&turned("a", c.flag("ta"))?, &turned("b", c.flag("tb"))?)
        },
    );
}

#[test]
fn route() {
    Goldens::open("route").check(
        |_| 2e-6,
        |c| {
            let (weights, ids) = ops::route::route(c.input("logits"), c.size("k"), c.flag("renormalise"))?;
            assert_eq!(ids.to_u32()?, c.input("ids").to_u32()?, "{}", c.name);
            Ok(weights)
        },
    );
}

#[test]
fn balance_loss() {
    Goldens::open("balance_loss")
        .check(|_| 2e-6, |c| ops::balance_loss::balance_loss(c.input("logits"), c.size("k")));
}

#[test]
fn experts() {
    Goldens::open("experts").check(
        |_| 5e-6,
        |c| {
            let gate = match c.text("gate") {
                "silu" => Gate::Silu,
                "relu" => Gate::Relu,
                _ => Gate::GeluTanh,
            };
            let maps = [c.input("gate_up"), c.input("down")];
            ops::experts::experts(c.input("x"), c.input("ids"), c.input("weights"), maps, gate)
        },
    );
}

#[test]
fn convolutions() {
    Goldens::open("conv2d")
        .check(|_| 3e-6, |c| conv2d(c.input("x"), c.input("w"), c.inputs.get("bias"), c.conv2d()));
    Goldens::open("conv_transpose2d").check(
        |_| 3e-6,
        |c| {
            let options = ConvTranspose2dOptions { of: c.conv2d(), output_padding: c.pair("output_padding") };
            conv_transpose2d(c.input("x"), c.input("w"), Some(c.input("bias")), options)
        },
    );
}

#[test]
fn pooling() {
    Goldens::open("pool2d").check(
        |_| 2e-6,
        |c| {
            let x = c.input("x");
            let sliding = |dilation| Windows::Sliding {
                size: c.pair("size"),
                stride: c.pair("stride"),
                padding: c.pair("padding"),
                dilation,
            };
            match c.text("kind") {
                "max" => max_pool2d(x, sliding(c.pair("dilation"))),
                "avg" => avg_pool2d(x, sliding([1; 2]), c.flag("include_pad")),
                "adaptive_max" => max_pool2d(x, Windows::Adaptive { output: c.pair("output") }),
                _ => avg_pool2d(x, Windows::Adaptive { output: c.pair("output") }, false),
            }
        },
    );
}

#[test]
fn interpolation() {
    Goldens::open("interpolate").check(
        |_| 2e-6,
        |c| {
            let how = match c.text("how") {
                "nearest" => Resize::Nearest,
                "bilinear" => Resize::Bilinear,
                _ => Resize::BilinearCorners,
            };
            interpolate(c.input("x"), c.pair("size"), how)
        },
    );
}

/// Tests training with batch statistics, which updates running statistics, and inference with those.
#[test]
fn batch_norm_with_running_statistics() {
    // A mean of 100 standard deviations has an f32 error of 1e-5 of one.
    let tolerance = |case: &str| if case == "far" { 1e-4 } else { 5e-6 };
    Goldens::open("batch_norm").check(tolerance, |c| {
        let (x, gamma, beta) = (c.input("x"), c.input("gamma"), c.input("beta"));
        let kept = |kind: &str| {
            let name = format!("{}.{kind}", c.name);
            let values: Vec<f32> = floats(c.file, &name).into_iter().map(|v| v as f32).collect();
            Tensor::from_f32(x.device(), [values.len()], &values, DType::F32)
        };
        let running = Running { mean: kept("mean_before")?, variance: kept("var_before")? };
        let [y, mean, variance] = batch_norm(x, gamma, beta, c.f32("eps"))?;
        running.update(&mean, &variance, x.count() / x.dims()[1], c.f32("momentum"))?;
        c.compare("mean_after", &running.mean, 1e-6);
        c.compare("var_after", &running.variance, 1e-6);
        let inference = batch_norm_inference(x, gamma, beta, &running, c.f32("eps"))?;
        c.compare("inference", &inference, tolerance(c.name));
        Ok(y)
    });
}

/// PyTorch's weight is (out, in).
#[test]
fn linear() {
    Goldens::open("linear").check(
        |_| 2e-6,
        |c| {
            let bias = c.flag("bias").then(|| c.input("bias"));
            ops::matmul::linear(c.input("input"), &c.input("weight").transpose(0, 1)?, bias)
        },
    );
}

/// Files that other tests read: optimizers and clipping in `optimizer.rs`, schedules in `netcl-train`, and special values such as NaN in
/// `special_values.rs` of the ops, which has their references.
const ELSEWHERE: [&str; 5] = ["optim", "clip_grad_norm", "schedules", "special_values", "quant"];

#[test]
fn every_file_is_read_by_a_test() {
    let source = include_str!("goldens.rs");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let op = name.strip_suffix(".safetensors").unwrap_or_else(|| panic!("{name} is no golden"));
        let here = source.contains(&format!("Goldens::open(\"{op}\")"));
        assert!(here || ELSEWHERE.contains(&op), "no test reads {name}");
        files += 1;
    }
    assert!(files >= 17, "{files} files");
}
