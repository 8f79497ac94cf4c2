//! Compares the training of a small residual network with PyTorch: `tools/golden_resnet.py` describes the training and writes the results.
//! It also checks that `netcl`'s networks have the parameter names and shapes of torchvision.
#![allow(clippy::unwrap_used, clippy::panic)] // tests

use netcl::model::checkpoint::{TensorData, read_tensors};
use netcl::model::params::Params;
use netcl::model::vision::{Sequential, models};
use netcl::tensor::ops::conv::Conv2dOptions;
use netcl::tensor::ops::cross_entropy::{CrossEntropy, cross_entropy};
use netcl::tensor::ops::pool::Windows;
use netcl::tensor::suite::test_device;
use netcl::tensor::{DType, Tensor};
use netcl::train::optim::{Optimizer, ParamGroup, Sgd};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const STEPS: usize = 20;
const BATCH: usize = 8;
const CLASSES: usize = 5;
const SIZE: usize = 12;

/// Returns numbers from -1 to 1, determined by name and position, as in the script.
fn drawn(name: &str, count: usize) -> Vec<f32> {
    let hash = name.bytes().fold(0x811C_9DC5u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    let at = |i: usize| {
        let spread = hash.wrapping_add((i as u32).wrapping_mul(2_654_435_761));
        spread.wrapping_mul(2_246_822_519).wrapping_add(hash)
    };
    (0..count).map(|i| (f64::from(at(i)) / f64::from(1u32 << 31) - 1.0) as f32).collect()
}

fn block(from: usize, to: usize, stride: usize) -> Sequential {
    let plain = Conv2dOptions::default().padding(1);
    let main = Sequential::new().conv2d_with([from, to], 3, plain.stride(stride), false).named("conv1");
    let main = main.batch_norm(to).named("bn1").relu();
    let main = main.conv2d_with([to, to], 3, plain, false).named("conv2").batch_norm(to).named("bn2");
    let shortcut = match stride == 1 && from == to {
        true => Sequential::new(),
        false => {
            let single = Conv2dOptions::default().stride(stride);
            Sequential::new().conv2d_with([from, to], 1, single, false).batch_norm(to)
        }
    };
    Sequential::new().residual(main, shortcut)
}

fn net() -> Sequential {
    let stem = Conv2dOptions::default().padding(1);
    let net = Sequential::new().conv2d_with([3, 8], 3, stem, false).named("conv1");
    let net = net.batch_norm(8).named("bn1").relu().max_pool_with(Windows::sliding(3, 2, 1));
    let net = net.group("layer1", block(8, 8, 1)).group("layer2", block(8, 12, 2));
    net.global_avg_pool().flatten().linear(12, CLASSES).named("fc")
}

/// Checks that every element is within 1e-4 of the largest expected one, which counts as at least 1e-2.
fn close(what: &str, got: &[f32], expected: &TensorData) {
    let expected = expected.floats().unwrap();
    assert_eq!(got.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(1e-2f32, |m, v| m.max(v.abs()));
    for (i, (g, e)) in got.iter().zip(&expected).enumerate() {
        assert!((g - e).abs() <= 1e-4 * scale, "{what}[{i}]: {g}, PyTorch has {e}, the largest is {scale}");
    }
}

/// Returns the initial value of a parameter by the script's rule.
fn start(parameter: &Tensor) -> Vec<f32> {
    let name = parameter.name().unwrap();
    let fan: usize = parameter.dims()[1..].iter().product();
    let norm = name.contains("bn") || name.contains("downsample.1");
    let of = |u: f32| match parameter.dims().len() {
        1 => (0.1 * f64::from(u) + f64::from(u8::from(norm && name.ends_with("weight")))) as f32,
        _ => (f64::from(u) * (3.0 / fan as f64).sqrt()) as f32,
    };
    drawn(name, parameter.count()).into_iter().map(of).collect()
}

#[test]
fn twenty_steps_of_a_residual_network_are_those_of_pytorch() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/resnet.safetensors");
    let golden: BTreeMap<String, TensorData> =
        read_tensors(&path).unwrap().into_iter().map(|t| (t.name.clone(), t)).collect();
    let device = test_device().unwrap();
    let mut params = Params::new(&device, DType::F32, Some(1));
    let network = net().build(&mut params, "").unwrap();
    for parameter in params.list() {
        parameter.set_f32(&start(parameter)).unwrap();
    }
    let rule = Arc::new(Sgd { momentum: 0.9, dampening: 0.0, nesterov: false });
    let mut optimizer = Optimizer::new(rule, vec![ParamGroup::new(&params.trained(), 0.0)]).unwrap();
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let images = drawn(&format!("images {step}"), BATCH * 3 * SIZE * SIZE);
        let x = Tensor::from_f32(&device, [BATCH, 3, SIZE, SIZE], &images, DType::F32).unwrap();
        let labels: Vec<u32> = (0..BATCH).map(|i| ((i + step) % CLASSES) as u32).collect();
        let labels = Tensor::from_u32(&device, [BATCH], &labels).unwrap();
        optimizer.zero_grad();
        let logits = network.forward(&x, true).unwrap();
        let loss = cross_entropy(&logits, &labels, CrossEntropy::default()).unwrap();
        optimizer.backward(&loss).unwrap();
        losses.push(loss.item().unwrap());
        if step == 0 || step + 1 == STEPS {
            for parameter in params.list() {
                let name = format!("grad.{step}.{}", parameter.name().unwrap());
                let gradient = parameter.grad().unwrap_or_else(|| panic!("{name}: no gradient"));
                close(&name, &gradient.to_vec().unwrap(), &golden[&name]);
            }
        }
        optimizer.step(0.02).unwrap();
    }
    close("losses", &losses, &golden["losses"]);
    let state: Vec<(String, Tensor)> = params
        .list()
        .iter()
        .map(|t| (t.name().unwrap().to_owned(), t.clone()))
        .chain(network.buffers())
        .collect();
    for (name, tensor) in &state {
        close(name, &tensor.to_vec().unwrap(), &golden[&format!("after.{name}")]);
    }
    let after = golden.keys().filter(|name| name.starts_with("after.")).count();
    assert_eq!(state.len(), after, "as many tensors as PyTorch's state dict");
}

/// Returns the norm of a tensor and four of its elements, as `tools/golden_mobilenet.py` records them.
fn summary(tensor: &Tensor) -> [f32; 5] {
    let v = tensor.to_vec().unwrap();
    let norm = v.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt() as f32;
    [norm, v[0], v[v.len() / 3], v[2 * v.len() / 3], v[v.len() - 1]]
}

/// Depthwise convolutions, ReLU6 and 53 batch norms: compares loss, every gradient and the running statistics of a step in f32 with f64.
#[test]
fn a_step_of_mobilenet_is_that_of_pytorch() {
    const SIDE: usize = 16;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/mobilenet.safetensors");
    let golden: BTreeMap<String, TensorData> =
        read_tensors(&path).unwrap().into_iter().map(|t| (t.name.clone(), t)).collect();
    let device = test_device().unwrap();
    let described = models::of("mobilenet-v2-small", [3, SIDE, SIDE], 10).unwrap();
    let (params, network) =
        Params::build(&device, DType::F32, None, |params| described.build(params, "")).unwrap();
    for parameter in params.list() {
        let name = parameter.name().unwrap();
        let fan: usize = parameter.dims()[1..].iter().product();
        let norm = !name.contains("classifier") && name.ends_with("weight");
        let of = |u: f32| match parameter.dims().len() {
            1 => (0.1 * f64::from(u) + f64::from(u8::from(norm))) as f32,
            _ => (f64::from(u) * (3.0 / fan as f64).sqrt()) as f32,
        };
        let values: Vec<f32> = drawn(name, parameter.count()).into_iter().map(of).collect();
        parameter.set_f32(&values).unwrap();
    }
    let near = |name: &str, got: [f32; 5], bound: f32| {
        let expected = golden[name].floats().unwrap();
        // A bias between two batch norms without an activation has a gradient of zero: its terms add up to rounding errors.
        for (g, e) in got.iter().zip(&expected) {
            assert!(
                (g - e).abs() <= bound * expected[0].max(1e-2),
                "{name}: {got:?}, PyTorch has {expected:?}"
            );
        }
    };
    let images = drawn("images 0", BATCH * 3 * SIDE * SIDE);
    let x = Tensor::from_f32(&device, [BATCH, 3, SIDE, SIDE], &images, DType::F32).unwrap();
    let labels: Vec<u32> = (0..BATCH as u32).collect();
    let labels = Tensor::from_u32(&device, [BATCH], &labels).unwrap();
    let loss = cross_entropy(&network.forward(&x, true).unwrap(), &labels, CrossEntropy::default()).unwrap();
    loss.backward().unwrap();
    close("losses", &[loss.item().unwrap()], &golden["losses"]);
    for parameter in params.list() {
        let name = format!("grad.{}", parameter.name().unwrap());
        near(&name, summary(&parameter.grad().unwrap()), 2e-3);
    }
    let buffers = network.buffers();
    assert_eq!(params.list().len() + buffers.len() + 1, golden.len(), "as many tensors as PyTorch's");
    for (name, tensor) in &buffers {
        near(&format!("after.{name}"), summary(tensor), 1e-3);
    }
}

/// Numbers of parameters and some names of torchvision 0.23.
#[test]
fn residual_networks_have_torchvisions_parameters() {
    let device = test_device().unwrap();
    for (name, count, tensors, last) in [
        ("resnet18", 11_689_512, 62, "layer4.1.bn2.bias"),
        ("resnet50", 25_557_032, 161, "layer4.2.bn3.bias"),
    ] {
        let described = models::of(name, [3, 224, 224], 1000).unwrap();
        let mut params = Params::new(&device, DType::F32, None);
        let network = described.build(&mut params, "").unwrap();
        assert_eq!((params.count(), params.list().len()), (count, tensors), "{name}");
        for wanted in ["conv1.weight", "bn1.bias", "layer2.0.downsample.0.weight", "fc.bias", last] {
            assert!(params.get(wanted).is_some(), "{name}: {wanted}");
        }
        assert_eq!(params.get("conv1.weight").unwrap().dims(), [64, 3, 7, 7]);
        let buffers = network.buffers();
        assert!(buffers.iter().any(|(n, _)| n == "layer1.0.bn1.running_var"), "{name}");
    }
}

/// Numbers of parameters of torchvision 0.23's MobileNetV2 and ViT-S/16, and the first names.
#[test]
fn mobile_networks_and_transformers_have_torchvisions_parameters() {
    let device = test_device().unwrap();
    let built = |name: &str, size: usize, classes: usize| {
        let mut params = Params::new(&device, DType::F32, None);
        let described = models::of(name, [3, size, size], classes).unwrap();
        let network = described.build(&mut params, "").unwrap();
        (params, network)
    };
    let (params, network) = built("mobilenet-v2", 224, 1000);
    assert_eq!((params.count(), params.list().len(), network.buffers().len()), (3_504_872, 158, 104));
    for (name, dims) in [
        ("features.0.0.weight", &[32, 3, 3, 3][..]),
        ("features.1.conv.0.0.weight", &[32, 1, 3, 3]),
        ("features.1.conv.1.weight", &[16, 32, 1, 1]),
        ("features.1.conv.2.bias", &[16]),
        ("features.2.conv.0.0.weight", &[96, 16, 1, 1]),
        ("features.2.conv.1.0.weight", &[96, 1, 3, 3]),
        ("features.17.conv.2.weight", &[320, 960, 1, 1]),
        ("features.17.conv.3.weight", &[320]),
        ("features.18.0.weight", &[1280, 320, 1, 1]),
        ("classifier.1.weight", &[1000, 1280]),
    ] {
        assert_eq!(params.get(name).unwrap_or_else(|| panic!("{name}")).dims(), dims, "{name}");
    }
    assert!(network.buffers().iter().any(|(name, _)| name == "features.3.conv.1.1.running_mean"));
    let (params, _) = built("vit-small", 224, 1000);
    assert_eq!(params.count(), 22_050_664);
    for name in [
        "class_token",
        "encoder.pos_embedding",
        "encoder.layers.encoder_layer_11.mlp.3.bias",
        "heads.head.bias",
    ] {
        assert!(params.get(name).is_some(), "{name}");
    }
}

/// Every network gives finite logits, and gradients for all parameters.
#[test]
fn networks_run_forward_and_backward() {
    let device = test_device().unwrap();
    let check = |name: &str, described: Sequential, expected: &[usize]| {
        let mut params = Params::new(&device, DType::F32, Some(3));
        let network = described.build(&mut params, "").unwrap();
        let x = Tensor::from_f32(&device, [2, 3, 16, 16], &drawn("images", 2 * 3 * 256), DType::F32).unwrap();
        let y = network.forward(&x, true).unwrap();
        assert_eq!(y.dims(), expected, "{name}");
        y.square().unwrap().sum(&[], false).unwrap().backward().unwrap();
        for parameter in params.list() {
            let gradient = parameter
                .grad()
                .unwrap_or_else(|| panic!("{name}: {:?} does not have a gradient", parameter.name()));
            assert!(
                gradient.to_vec().unwrap().iter().all(|g| g.is_finite()),
                "{name}: {:?}",
                parameter.name()
            );
        }
        let y = network.forward(&x, false).unwrap().to_vec().unwrap();
        assert!(y.iter().all(|v| v.is_finite()), "{name}");
    };
    for name in models::MODELS.iter().filter(|name| !["resnet50", "resnet18", "mnist-cnn"].contains(name)) {
        check(name, models::of(name, [3, 16, 16], 5).unwrap(), &[2, 5]);
    }
    check("unet", models::unet(3, 4, 8, 2), &[2, 4, 16, 16]);
}
