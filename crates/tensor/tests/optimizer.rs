//! Compares optimizer steps with PyTorch's, and tests their state and their error messages.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests, which clippy takes for production code

use netcl_tensor::ops::optimizer::{Adam, AdamW, Counters, Entry, LossScale, Rule, Sgd, Update};
use netcl_tensor::suite::{SampleInput, test_device};
use netcl_tensor::{DType, Device, Tensor};
use safetensors::SafeTensors;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

const ADAMW: AdamW = AdamW { betas: [0.9, 0.95], eps: 1e-8 };
const SGD: Sgd = Sgd { momentum: 0.0, dampening: 0.0, nesterov: false };

struct Goldens(Vec<u8>);

impl Goldens {
    fn open(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/goldens/{name}.safetensors"));
        Self(std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }
    fn cases(&self) -> Vec<(String, Value)> {
        let (_, header) = SafeTensors::read_metadata(&self.0).unwrap();
        let all = header.metadata().clone().unwrap();
        assert!(!all.is_empty());
        all.into_iter().map(|(name, text)| (name, serde_json::from_str(&text).unwrap())).collect()
    }
    /// Returns shape and values.
    fn get(&self, name: &str) -> (Vec<usize>, Vec<f32>) {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let view = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        let values = view.data().chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap()));
        (view.shape().to_vec(), values.collect())
    }
}

fn close(what: &str, got: &[f32], expected: impl IntoIterator<Item = f64>, tolerance: f64) {
    let expected: Vec<f64> = expected.into_iter().collect();
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (g, e)) in got.iter().zip(&expected).enumerate() {
        let difference = (f64::from(*g) - e).abs();
        assert!(
            difference <= tolerance * e.abs().max(1.0),
            "{what}[{i}]: {g}, expected {e}: difference {difference:.1e}"
        );
    }
}

fn wide(values: &[f32]) -> impl Iterator<Item = f64> {
    values.iter().map(|v| f64::from(*v))
}

fn rule_of(case: &Value) -> Arc<dyn Rule> {
    let number = |key: &str| case[key].as_f64().unwrap_or(0.0);
    let betas = [0, 1].map(|i| case["betas"][i].as_f64().unwrap_or(0.0));
    match case["optimizer"].as_str().unwrap() {
        "AdamW" => Arc::new(AdamW { betas, eps: number("eps") }),
        "Adam" => Arc::new(Adam { betas, eps: number("eps") }),
        _ => Arc::new(Sgd {
            momentum: number("momentum"),
            dampening: number("dampening"),
            nesterov: case["nesterov"].as_bool().unwrap_or(false),
        }),
    }
}

#[test]
fn three_steps_are_those_of_pytorch() {
    let (device, goldens) = (test_device().unwrap(), Goldens::open("optim"));
    for (name, case) in goldens.cases() {
        let (shape, start) = goldens.get(&format!("{name}.in.param"));
        let (_, grads) = goldens.get(&format!("{name}.in.grads"));
        let (_, expected) = goldens.get(&format!("{name}.out"));
        let param = Tensor::from_f32(&device, shape.clone(), &start, DType::F32).unwrap().parameter(&name);
        let weight_decay = case["weight_decay"].as_f64().unwrap_or(0.0);
        let entry = Entry { param: param.clone(), weight_decay, lr_scale: 1.0 };
        let mut update = Update::new(rule_of(&case), vec![entry], None).unwrap();
        let n = start.len();
        for step in 0..3 {
            let grad = Tensor::from_f32(&device, shape.clone(), &grads[step * n..][..n], DType::F32).unwrap();
            param.set_grad(Some(grad));
            update.step(case["lr"].as_f64().unwrap(), None).unwrap();
            let what = format!("{name} step {step}");
            close(&what, &param.to_vec().unwrap(), wide(&expected[step * n..][..n]), 1e-6);
        }
    }
}

/// A step of plain gradient descent from zero with learning rate 1 gives minus the clipped gradients.
#[test]
fn clipping_is_that_of_pytorch() {
    let (device, goldens) = (test_device().unwrap(), Goldens::open("clip_grad_norm"));
    for (name, case) in goldens.cases() {
        let params: Vec<Tensor> = (0..3)
            .map(|i| {
                let (shape, grad) = goldens.get(&format!("{name}.in.{i}"));
                let param = Tensor::zeros(&device, shape.clone(), DType::F32).unwrap().parameter("p");
                param.set_grad(Some(Tensor::from_f32(&device, shape, &grad, DType::F32).unwrap()));
                param
            })
            .collect();
        let mut update = Update::new(Arc::new(SGD), entries(&params, 0.0), None).unwrap();
        update.step(1.0, case["max_norm"].as_f64()).unwrap();
        let norm = goldens.get(&format!("{name}.out")).1;
        close(&name, &[update.report().unwrap().read().unwrap().norm], wide(&norm), 1e-6);
        for (i, param) in params.iter().enumerate() {
            let expected = goldens.get(&format!("{name}.out.{i}")).1;
            close(&name, &param.to_vec().unwrap(), wide(&expected).map(|v| -v), 1e-6);
        }
    }
}

fn entries(params: &[Tensor], weight_decay: f64) -> Vec<Entry> {
    params.iter().map(|p| Entry { param: p.clone(), weight_decay, lr_scale: 1.0 }).collect()
}

/// Creates parameters in one buffer at multiples of 256 elements, and the last one in a separate buffer.
fn parameters(device: &Device, dtype: DType) -> Vec<Tensor> {
    let sizes = [1, 300, 20_011, 7];
    let arena = Tensor::zeros(device, [1 << 16], dtype).unwrap();
    let mut at = 0;
    let make = |(i, n): (usize, &usize)| {
        let own = Tensor::zeros(device, [*n], dtype).unwrap();
        let tensor = if i < 3 { arena.slice(0, at..at + n).unwrap() } else { own };
        at += n.next_multiple_of(256);
        tensor.set_f32(&draw(i as u64, *n, dtype)).unwrap();
        tensor.parameter(&format!("p{i}"))
    };
    sizes.iter().enumerate().map(make).collect()
}

fn draw(seed: u64, n: usize, dtype: DType) -> Vec<f32> {
    SampleInput::normal(&[n]).draw(seed, dtype).data.iter().map(|v| *v as f32).collect()
}

fn give_grads(params: &[Tensor], step: u64) {
    for (i, p) in params.iter().enumerate() {
        let values = draw(1000 * (step + 1) + i as u64, p.count(), p.dtype());
        p.set_grad(Some(Tensor::from_f32(p.device(), p.shape(), &values, p.dtype()).unwrap()));
    }
}

/// Returns the complete state of a run after `steps` steps. The last steps use a second optimizer that loaded the state of the first one.
fn run(device: &Device, dtype: DType, steps: u64, take_over: Option<u64>) -> (Vec<Vec<u8>>, Counters) {
    let params = parameters(device, dtype);
    let new = || {
        Update::new(
            Arc::new(ADAMW),
            entries(&params, 0.1),
            Some(LossScale { initial: 8.0, growth_interval: 2 }),
        )
        .unwrap()
    };
    let mut update = new();
    let bytes = |update: &Update| -> Vec<Vec<u8>> {
        (0..params.len()).flat_map(|i| update.state(i).unwrap()).map(|(_, t)| t.to_bytes().unwrap()).collect()
    };
    for step in 0..steps {
        if take_over == Some(step) {
            let (state, counters) = (bytes(&update), update.counters().unwrap());
            update = new();
            let windows = (0..params.len()).flat_map(|i| update.state(i).unwrap());
            windows.zip(state).for_each(|((_, t), bytes)| t.set_bytes(&bytes).unwrap());
            update.set_counters(counters).unwrap();
            update.take_master(false);
        }
        give_grads(&params, step);
        update.step(1e-2, Some(1.0)).unwrap();
    }
    let mut all = bytes(&update);
    all.extend(params.iter().map(|p| p.to_bytes().unwrap()));
    (all, update.counters().unwrap())
}

#[test]
fn second_run_and_resumed_run_give_the_same_bits() {
    let device = test_device().unwrap();
    for dtype in [DType::F32, DType::Bf16] {
        let first = run(&device, dtype, 4, None);
        assert_eq!(first.1, Counters { step: 4, scale: 32.0, good: 0 });
        assert!(first == run(&device, dtype, 4, None), "{dtype}: a second run gave different bits");
        assert!(first == run(&device, dtype, 4, Some(3)), "{dtype}: a resumed run gave other bits");
    }
    assert_eq!(device.memory().buffers, 0);
}

#[test]
fn gradients_that_are_not_finite_skip_the_step_and_halve_the_scale() {
    let device = test_device().unwrap();
    let param = Tensor::from_f32(&device, [3], &[1.0, 2.0, 3.0], DType::F16).unwrap().parameter("w");
    let scale = Some(LossScale { initial: 1024.0, growth_interval: 2 });
    let mut update = Update::new(Arc::new(ADAMW), entries(std::slice::from_ref(&param), 0.0), scale).unwrap();
    let mut reports = Vec::new();
    let before = param.to_bytes().unwrap();
    for bad in [true, false, false, false] {
        param.set_grad(None);
        let x =
            Tensor::from_f32(&device, [3], &[if bad { 1000.0 } else { 0.5 }, 0.0, 0.25], DType::F16).unwrap();
        let loss = param.mul(&x).unwrap().sum(&[], false).unwrap();
        update.backward(&loss).unwrap();
        update.step(1e-2, None).unwrap();
        reports.push(update.report().unwrap());
        assert_eq!(param.to_bytes().unwrap() == before, bad);
        if bad {
            assert!(update.state(0).unwrap().iter().take(2).all(|(_, t)| t.to_vec().unwrap() == [0.0; 3]));
        }
    }
    let infos: Vec<_> = reports.iter().map(|r| r.read().unwrap()).collect();
    assert_eq!(infos.iter().map(|r| r.skipped).collect::<Vec<_>>(), [true, false, false, false]);
    assert_eq!(infos.iter().map(|r| r.scale).collect::<Vec<_>>(), [1024.0, 512.0, 512.0, 1024.0]);
    assert_eq!(infos.iter().map(|r| r.step).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!((f64::from(infos[1].norm) - 0.3125f64.sqrt()).abs() < 1e-6);
}

#[test]
fn mistakes_are_named() {
    let device = test_device().unwrap();
    let make = |name: &str| Tensor::ones(&device, [2, 3], DType::F32).unwrap().parameter(name);
    let params = [make("wte.weight"), make("h.0.ln_1.bias")];
    params[0].set_grad(Some(Tensor::ones(&device, [2, 3], DType::F32).unwrap()));
    let mut update = Update::new(Arc::new(ADAMW), entries(&params, 0.1), None).unwrap();
    let e = update.step(0.1, None).unwrap_err();
    assert!(e.message().contains("h.0.ln_1.bias [2, 3] does not have a gradient"), "{e}");
    params[1].set_grad(Some(Tensor::ones(&device, [3, 2], DType::F32).unwrap()));
    let e = update.step(0.1, None).unwrap_err();
    assert!(e.message().contains("h.0.ln_1.bias has shape [3, 2], expected [2, 3]"), "{e}");
    assert_eq!(params[0].to_vec().unwrap(), [1.0; 6]);
    assert!(update.report().is_err());
    let failed = |entries| Update::new(Arc::new(ADAMW), entries, None).err().unwrap().message().to_owned();
    let twice = failed(entries(&[params[0].clone(), params[0].clone()], 0.0));
    assert!(twice.contains("wte.weight and wte.weight share memory"), "{twice}");
    assert!(failed(Vec::new()).contains("expected at least one parameter"));
    let view = params[0].detach().transpose(0, 1).unwrap().parameter("view");
    assert!(failed(entries(&[view], 0.0)).contains("view is a non-contiguous view"));
}
