//! Rules for changes between forward and backward, ownership of gradients, and threads.

use super::{
    accumulate_in_place, checkpoint, function, later_gradients_apart, no_grad, replace_in_place,
    with_gradient_sink,
};
use crate::ops::attention::{AttentionOptions, attention};
use crate::ops::embedding::embedding;
use crate::ops::join::cat;
use crate::ops::layer_norm::layer_norm;
use crate::ops::map::map_into;
use crate::ops::matmul::{linear, matmul};
use crate::ops::optimizer::{Entry, Sgd, Update};
use crate::ops::rms_norm::rms_norm;
use crate::suite::test_device;
use crate::{DType, Device, Error, Result, Tensor};
use std::sync::Arc;

mod threads;

fn tensor(device: &Device, shape: &[usize], first: f32) -> Tensor {
    let count: usize = shape.iter().product();
    let data: Vec<f32> = (0..count).map(|i| 0.2 + (first + i as f32 * 0.37) % 0.8).collect();
    Tensor::from_f32(device, shape, &data, DType::F32).unwrap()
}

/// A table with a lookup and a product, as in a model with tied embeddings: the product's gradient comes first and stays separate.
#[test]
fn later_gradients_have_an_accumulator_of_their_own() {
    let device = test_device().unwrap();
    let full = |dims: [usize; 2], x| Tensor::full(&device, dims, x, DType::F32).unwrap();
    let table = Tensor::from_f32(&device, [3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], DType::F32).unwrap();
    let table = table.parameter("table");
    let ids = Tensor::from_u32(&device, [2], &[2, 2]).unwrap();
    let result = |looks_up: bool| {
        let x = if looks_up { embedding(&table, &ids).unwrap() } else { full([2, 2], 1.0) };
        matmul(&x, &table.transpose(0, 1).unwrap()).unwrap()
    };
    // The first and the later gradients, after a backward that replaces and another that adds.
    let collected = |looks_up: bool| {
        let [first, later] = [7.0, 9.0].map(|x| full([3, 2], x));
        table.set_grad(Some(first.clone()));
        [true, false].map(|replaces| {
            let (y, ones) = (result(looks_up), full([2, 3], 1.0));
            let walk = || match replaces {
                true => replace_in_place(std::slice::from_ref(&table), || y.backward_with(&ones)),
                false => accumulate_in_place(|| y.backward_with(&ones)),
            };
            later_gradients_apart(&table, &later, replaces, walk).unwrap();
            [&first, &later].map(|t| t.to_vec().unwrap())
        })
    };
    // Both rows of x are (5, 6); the columns of the table sum to (9, 12).
    let of_rows =
        |by: f32| [[10.0 * by, 12.0 * by].repeat(3), vec![0.0, 0.0, 0.0, 0.0, 18.0 * by, 24.0 * by]];
    assert_eq!(collected(true), [of_rows(1.0), of_rows(2.0)]);
    assert_eq!(collected(false), [2.0, 4.0].map(|x| [vec![x; 6], vec![0.0; 6]]));
}

/// A gradient sink also receives gradients of parameters before a recomputed part.
#[test]
fn given_gradients_pass_what_is_computed_again() {
    let device = test_device().unwrap();
    let x = Tensor::full(&device, [2, 3], 2.0, DType::F32).unwrap();
    let [before, within] = ["before", "within"].map(|name| tensor(&device, &[2, 3], 1.0).parameter(name));
    let inner = within.clone();
    let y = checkpoint("again", &x.mul(&before).unwrap(), move |h| h.mul(&inner)).unwrap();
    let found = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let to = found.clone();
    let sink: super::GradientSink = std::sync::Arc::new(move |leaf: &Tensor, grad: Tensor| {
        to.lock().unwrap().push((leaf.name().unwrap().to_owned(), grad.to_vec()?));
        Ok(())
    });
    with_gradient_sink(sink, || y.backward_with(&Tensor::ones(&device, [2, 3], DType::F32)?)).unwrap();
    let twice = |t: &Tensor| t.to_vec().unwrap().iter().map(|v| 2.0 * v).collect::<Vec<f32>>();
    let expected = [("within".to_owned(), twice(&before)), ("before".to_owned(), twice(&within))];
    assert_eq!(*found.lock().unwrap(), expected);
}

/// The original failure: the gradient was silently 20 instead of 4.
#[test]
fn a_saved_tensor_that_was_overwritten_is_an_error_and_not_a_wrong_gradient() {
    let device = test_device().unwrap();
    let x = Tensor::from_f32(&device, [1], &[2.0], DType::F32).unwrap().parameter("x");
    let y = x.square().unwrap();
    x.set_f32(&[10.0]).unwrap();
    let e = y.backward().unwrap_err();
    let expected = "backward of square: input 0 (x), a tensor of shape [1] and type f32, was overwritten after the forward saved it: \
                    it is at version 2, expected version 1.";
    assert!(e.message().starts_with(expected), "{e}");
    assert!(x.grad().is_none());
    // A new forward uses the new values.
    x.square().unwrap().backward().unwrap();
    assert_eq!(x.grad().unwrap().to_vec().unwrap(), [20.0]);
}

/// Every way to write into an existing tensor is detected, through any alias.
#[test]
fn every_way_to_write_is_noticed() {
    let device = test_device().unwrap();
    let other = tensor(&device, &[4], 3.0);
    type Write<'a> = (&'a str, Box<dyn Fn(&Tensor) -> Result<()> + 'a>);
    let ways: Vec<Write<'_>> = vec![
        ("set_f32", Box::new(|x| x.set_f32(&[1.0; 4]))),
        ("set_bytes", Box::new(|x| x.set_bytes(&[0; 16]))),
        ("a detached alias", Box::new(|x| x.detach().set_f32(&[1.0; 4]))),
        ("a view", Box::new(|x| x.reshape([2, 2])?.set_f32(&[1.0; 4]))),
        ("a slice", Box::new(|x| x.slice(0, 3..4)?.set_f32(&[1.0]))),
        ("a window", Box::new(|x| x.window(0, [1])?.set_f32(&[1.0]))),
        ("a window's window", Box::new(|x| x.window(0, [2])?.window(0, [1])?.set_f32(&[1.0]))),
        ("fill", Box::new(|x| device.fill(x.storage(), &[0]))),
        ("upload", Box::new(|x| device.upload(x.storage(), 8, &[0; 4]))),
        ("upload_overlapped", Box::new(|x| device.upload_overlapped(x.storage(), 0, &[0; 4]))),
        ("copy", Box::new(|x| device.copy(other.storage(), 0, x.storage(), 4, 4))),
        ("a kernel", Box::new(|x| map_into("x0", &[&other], &[], x))),
        (
            "an optimizer",
            Box::new(|x| {
                x.set_grad(Some(other.clone()));
                let rule = Arc::new(Sgd { momentum: 0.0, dampening: 0.0, nesterov: false });
                let entry = Entry { param: x.clone(), weight_decay: 0.0, lr_scale: 1.0 };
                Update::new(rule, vec![entry], None)?.step(0.1, None)
            }),
        ),
    ];
    for (name, write) in ways {
        let x = tensor(&device, &[4], 1.0).parameter("x");
        let y = x.square().unwrap().sum(&[], false).unwrap();
        write(&x).unwrap();
        let e = y.backward().expect_err(name);
        assert!(e.message().contains("square") && e.message().contains("overwritten"), "{name}: {e}");
    }
}

/// An op of tensors.
type Make = fn(&[Tensor]) -> Result<Tensor>;

/// Returns whether the backward fails after input number `which` of an op was overwritten, or its result if there is no such input.
fn refuses(device: &Device, name: &str, shapes: &[&[usize]], make: Make, which: usize) -> bool {
    let leaves: Vec<Tensor> =
        shapes.iter().enumerate().map(|(i, s)| tensor(device, s, i as f32).parameter("x")).collect();
    // Uses results of another op, because a leaf behaves like one to a user who writes with recording off.
    let inputs: Vec<Tensor> = leaves.iter().map(|x| x.mul_scalar(1.0).unwrap()).collect();
    let y = make(&inputs).unwrap();
    let target = inputs.get(which).unwrap_or(&y).detach();
    // The result of attention is a view with interleaved heads.
    device.fill(target.storage(), &0.5f32.to_le_bytes()).unwrap();
    let dy = Tensor::ones(device, y.shape(), DType::F32).unwrap();
    match y.backward_with(&dy) {
        Ok(()) => false,
        Err(e) if e.message().contains("overwritten after the forward saved it") => true,
        Err(e) => panic!("{name}, {which}: {e}"),
    }
}

/// Inputs and result for which PyTorch 2.15 rejects a write (x) or not (.). For `relu`, it saves the result and netcl may save the input
/// (?). The suite checks for every op that accepted writes do not change gradients.
#[test]
fn writes_are_refused_where_pytorch_refuses_them() {
    const S: &[usize] = &[2, 3];
    const A: &[usize] = &[1, 2, 4, 8];
    let device = test_device().unwrap();
    let table: &[(&str, &[&[usize]], &str, Make)] = &[
        ("neg", &[S], "..", |x| x[0].neg()),
        ("exp", &[S], ".x", |x| x[0].exp()),
        ("log", &[S], "x.", |x| x[0].log()),
        ("sqrt", &[S], ".x", |x| x[0].sqrt()),
        ("rsqrt", &[S], ".x", |x| x[0].rsqrt()),
        ("tanh", &[S], ".x", |x| x[0].tanh()),
        ("sigmoid", &[S], ".x", |x| x[0].sigmoid()),
        ("relu", &[S], "??", |x| x[0].relu()),
        ("silu", &[S], "x.", |x| x[0].silu()),
        ("gelu", &[S], "x.", |x| x[0].gelu()),
        ("gelu_tanh", &[S], "x.", |x| x[0].gelu_tanh()),
        ("abs", &[S], "x.", |x| x[0].abs()),
        ("square", &[S], "x.", |x| x[0].square()),
        ("sin", &[S], "x.", |x| x[0].sin()),
        ("cos", &[S], "x.", |x| x[0].cos()),
        ("add_scalar", &[S], "..", |x| x[0].add_scalar(1.5)),
        ("mul_scalar", &[S], "..", |x| x[0].mul_scalar(2.5)),
        ("pow_scalar", &[S], "x.", |x| x[0].pow_scalar(1.7)),
        ("clamp", &[S], "x.", |x| x[0].clamp(0.1, 0.9)),
        ("add", &[S, S], "...", |x| x[0].add(&x[1])),
        ("sub", &[S, S], "...", |x| x[0].sub(&x[1])),
        ("mul", &[S, S], "xx.", |x| x[0].mul(&x[1])),
        ("div", &[S, S], "xx.", |x| x[0].div(&x[1])),
        ("maximum", &[S, S], "xx.", |x| x[0].maximum(&x[1])),
        ("minimum", &[S, S], "xx.", |x| x[0].minimum(&x[1])),
        ("matmul", &[S, &[3, 4]], "xx.", |x| matmul(&x[0], &x[1])),
        ("linear", &[S, &[3, 4], &[4]], "xx..", |x| linear(&x[0], &x[1], Some(&x[2]))),
        ("sum", &[S], "..", |x| x[0].sum(&[1], false)),
        ("mean", &[S], "..", |x| x[0].mean(&[1], false)),
        ("max", &[S], "xx", |x| x[0].max(&[1], false)),
        ("softmax", &[S], ".x", |x| x[0].softmax(-1)),
        ("log_softmax", &[S], ".x", |x| x[0].log_softmax(-1)),
        ("layer_norm", &[S, &[3], &[3]], "xx..", |x| layer_norm(&x[0], &x[1], &x[2], 1e-5)),
        ("rms_norm", &[S, &[3]], "xx.", |x| rms_norm(&x[0], &x[1], 1e-5)),
        ("cat", &[S, S], "...", |x| cat(&[&x[0], &x[1]], 0)),
        ("attention", &[A, A, A], "xxxx", |x| attention(&x[0], &x[1], &x[2], AttentionOptions::default())),
    ];
    let mut found = String::new();
    for (name, shapes, expected, make) in table {
        for (which, verdict) in expected.chars().enumerate() {
            let refused = refuses(&device, name, shapes, *make, which);
            if verdict != '?' && refused != (verdict == 'x') {
                found += &format!("{name}, {which}: refused is {refused}, expected {verdict}\n");
            }
        }
    }
    assert!(found.is_empty(), "{found}");
}

/// Parameters of one arena, as `Params` creates them: an optimizer for some of them does not mark the others as changed.
#[test]
fn an_update_of_neighbours_in_an_arena_is_no_false_alarm() {
    let device = test_device().unwrap();
    let arena = Tensor::zeros(&device, [1024], DType::F32).unwrap();
    let part = |i: usize| arena.window(i * 256, [200]).unwrap().parameter(&format!("p{i}"));
    let [a, b, c] = [0, 1, 2].map(part);
    let rule = Arc::new(Sgd { momentum: 0.0, dampening: 0.0, nesterov: false });
    let entry = |p: &Tensor| Entry { param: p.clone(), weight_decay: 0.0, lr_scale: 1.0 };
    let mut update = Update::new(rule, vec![entry(&a), entry(&c)], None).unwrap();
    let loss = |p: &Tensor| p.add_scalar(1.0).unwrap().mul(p).unwrap().sum(&[], false).unwrap();
    for _ in 0..2 {
        [&a, &c].into_iter().for_each(|p| loss(p).backward().unwrap());
        let (kept, stale) = (loss(&b), loss(&a));
        update.step(0.1, None).unwrap();
        kept.backward().unwrap();
        let e = stale.backward().unwrap_err();
        assert!(e.message().contains("(p0)"), "{e}");
        [&a, &b, &c].into_iter().for_each(|p| p.set_grad(None));
    }
    let stale = loss(&b);
    arena.set_f32(&[0.0; 1024]).unwrap();
    assert!(stale.backward().is_err(), "the whole arena was written");
}

/// Recomputation uses the values of the forward.
#[test]
fn sources_of_recomputed_results_are_watched_too() {
    let device = test_device().unwrap();
    let w = tensor(&device, &[3], 0.0).parameter("w");
    let x = tensor(&device, &[3], 1.0);
    for overwrite in [false, true] {
        let y = w.mul(&x).unwrap().exp().unwrap();
        let source = w.mul(&x).unwrap().detach();
        let y = y.recomputed_by([&source], |[before]| before.exp());
        let loss = y.square().unwrap().sum(&[], false).unwrap();
        if overwrite {
            source.set_f32(&[0.0; 3]).unwrap();
        }
        let outcome = loss.backward();
        assert_eq!(outcome.is_err(), overwrite, "{outcome:?}");
        if let Err(e) = outcome {
            assert!(e.message().contains("exp, recomputed: source 0"), "{e}");
        }
    }
    let checkpointed = super::checkpoint("block", &w, |w| w.square()?.exp()).unwrap();
    w.set_f32(&[1.0; 3]).unwrap();
    assert!(checkpointed.sum(&[], false).unwrap().backward().is_err());
}

#[test]
fn a_gradient_owns_its_memory() {
    let device = test_device().unwrap();
    let [a, b] = [0.0, 1.0].map(|i| tensor(&device, &[2, 3], i).parameter("p"));
    let dy = tensor(&device, &[2, 3], 2.0);
    let before = dy.to_vec().unwrap();
    let y = a.add(&b).unwrap();
    y.retain_grad();
    y.backward_with(&dy).unwrap();
    let grads = [&a, &b, &y].map(|t| t.grad().unwrap());
    for (i, grad) in grads.iter().enumerate() {
        assert_eq!(grad.to_vec().unwrap(), before, "{i}");
        grad.set_f32(&[i as f32; 6]).unwrap();
    }
    assert_eq!(dy.to_vec().unwrap(), before);
    for (i, grad) in grads.iter().enumerate() {
        assert_eq!(grad.to_vec().unwrap(), [i as f32; 6]);
    }
    // The gradient of a sum is one number that is repeated. A collected gradient has separate elements.
    let x = tensor(&device, &[4, 5], 0.0).parameter("x");
    x.sum(&[], false).unwrap().backward().unwrap();
    let grad = x.grad().unwrap();
    assert!(grad.is_contiguous() && grad.storage().bytes() == 4 * 20);
    let mut values = vec![1.0; 20];
    values[3] = 7.0;
    grad.set_f32(&values).unwrap();
    assert_eq!(grad.to_vec().unwrap(), values);
    // A gradient that came through a transposed view is contiguous.
    x.set_grad(None);
    x.transpose(0, 1).unwrap().mul_scalar(2.0).unwrap().sum(&[], false).unwrap().backward().unwrap();
    assert!(x.grad().unwrap().is_contiguous());
}

/// The only owner keeps its gradient without a copy, also for an input that is used twice.
#[test]
fn a_gradient_with_one_owner_is_not_copied() {
    let device = test_device().unwrap();
    let [w, x] = [tensor(&device, &[3, 4], 0.0).parameter("w"), tensor(&device, &[2, 3], 1.0).parameter("x")];
    let backward = |y: &Tensor| {
        let dy = Tensor::ones(&device, y.shape(), DType::F32).unwrap();
        let before = device.launches();
        y.backward_with(&dy).unwrap();
        device.launches() - before
    };
    let y = x.exp().unwrap();
    assert_eq!(backward(&y), 1);
    x.set_grad(None);
    // dy goes to both inputs, and one of them gets a copy.
    let b = tensor(&device, &[2, 3], 1.0).parameter("b");
    let y = x.add(&b).unwrap().mul_scalar(2.0).unwrap();
    assert_eq!(backward(&y), 2);
    x.set_grad(None);
    // The dy of x waits for the other part: a sum, without a copy.
    let y = x.add(&x.exp().unwrap()).unwrap().mul_scalar(2.0).unwrap();
    assert_eq!(backward(&y), 3);
    let y = matmul(&b.detach(), &w).unwrap();
    let first = backward(&y);
    w.set_grad(None);
    let y = matmul(&b.detach(), &w).unwrap();
    assert_eq!(backward(&y), first);
}

#[test]
fn shapes_and_windows_that_wrap_are_refused() {
    let device = test_device().unwrap();
    let x = tensor(&device, &[8], 0.0);
    let huge = [1usize << 62, 4];
    assert!(x.slice(0, 0..1).unwrap().expand(huge).is_err() && x.expand(huge).is_err());
    assert!(x.slice(0, 0..0).unwrap().reshape(huge).is_err());
    assert!(Tensor::empty(&device, huge, DType::F32).is_err());
    assert!(Tensor::empty(&device, [usize::MAX / 4], DType::F32).is_err());
    assert!(Tensor::from_f32(&device, huge, &[], DType::F32).is_err());
    assert!(x.window(usize::MAX, [2]).is_err() && x.window(4, huge).is_err() && x.window(7, [2]).is_err());
    assert!(x.split(&[usize::MAX, 9], 0).is_err());
    let buffer = x.storage();
    for (start, bytes) in [(0, 33), (usize::MAX, 2), (32, usize::MAX), (256, 4)] {
        let e = buffer.window(start, bytes).unwrap_err();
        assert!(e.message().contains("of a buffer of 32 bytes"), "{e}");
    }
    for pattern in [&[][..], &[1; 3], &[1; 32]] {
        let e = device.fill(buffer, pattern).unwrap_err();
        assert!(e.message().starts_with("fill: a pattern of"), "{e}");
    }
    assert!(device.allocate(usize::MAX).is_err() && device.allocate_own(usize::MAX - 100).is_err());
    assert!(device.upload(buffer, usize::MAX, &[0; 4]).is_err());
}

/// A function with two results outside of the ops: its backward receives both gradients, and errors are reported.
#[test]
fn functions_from_outside_have_their_gradients() {
    let device = test_device().unwrap();
    let x = Tensor::from_f32(&device, [2], &[3.0, -1.0], DType::F32).unwrap().parameter("x");
    let made = |count: usize| {
        let ys = no_grad(|| Ok::<_, Error>(vec![x.square()?, x.mul_scalar(5.0)?])).unwrap();
        let kept = x.detach();
        let backward = move |dys: &[Option<Tensor>]| {
            assert!(dys[1].is_none());
            let dx = dys[0].as_ref().map(|dy| dy.mul(&kept)?.mul_scalar(2.0)).transpose()?;
            Ok(vec![dx; count])
        };
        function("twice", &[&x], ys, backward).unwrap()
    };
    made(1)[0].sum(&[], false).unwrap().backward().unwrap();
    assert_eq!(x.grad().unwrap().to_vec().unwrap(), [6.0, -2.0]);
    let error = made(3)[0].sum(&[], false).unwrap().backward().unwrap_err();
    assert_eq!(error.message(), "backward of twice: 3 gradients for 1 input, expected one for each");
    assert!(!no_grad(|| made(1))[0].requires_grad());
}
