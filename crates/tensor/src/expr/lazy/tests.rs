use super::super::lazy::{Lazy, explain_lazy, lazy};
use crate::graph::{BufferPlan, Graph, Trace};
use crate::suite::test_device;
use crate::{DType, Device, Error, Result, Settings, Tensor, no_grad};

mod convolutions;
mod epilogues;
mod programs;

fn devices() -> [Device; 2] {
    [test_device().unwrap(), Device::open("sim", &Settings::default()).unwrap()]
}

fn tensor(device: &Device, dims: &[usize], first: f32) -> Tensor {
    let count: usize = dims.iter().product();
    let data: Vec<f32> = (0..count).map(|i| (first + i as f32 * 0.37) % 1.6 - 0.8).collect();
    Tensor::from_f32(device, dims, &data, DType::F32).unwrap()
}

/// Returns the result of `f` and the number of kernels that it launched.
fn counted<R>(device: &Device, f: impl FnOnce() -> R) -> (R, u64) {
    let before = device.launches();
    let out = f();
    (out, device.launches() - before)
}

fn close(got: &Tensor, expected: &Tensor) {
    assert_eq!((got.shape(), got.dtype()), (expected.shape(), expected.dtype()));
    for (g, e) in got.to_vec().unwrap().iter().zip(expected.to_vec().unwrap()) {
        assert!(*g == e || (g - e).abs() <= 1e-5 * e.abs().max(1.0), "{g}, expected {e}");
    }
}

fn chain(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let y = x.mul(w)?.add_scalar(0.5)?.gelu()?.square()?;
    y.sub(&y.mean(&[-1], true)?)?.tanh()?.mul_scalar(3.0)?.softmax(-1)
}

#[test]
fn a_chain_is_one_kernel_forward_and_backward() {
    for device in devices() {
        let [x, w] = [tensor(&device, &[5, 33], 0.0), tensor(&device, &[33], 1.0)];
        let dy = tensor(&device, &[5, 33], 2.0);
        let eager = [x.parameter("x"), w.parameter("w")];
        let expected = chain(&eager[0], &eager[1]).unwrap();
        expected.backward_with(&dy).unwrap();
        let leaves = [x.parameter("x"), w.parameter("w")];
        let (y, launches) = counted(&device, || lazy(|| chain(&leaves[0], &leaves[1])).unwrap());
        assert_eq!(launches, 1);
        close(&y, &expected);
        // The gradient of x consists of rows, and that of w is a sum over them: one kernel for the terms, one for the sum.
        let ((), launches) = counted(&device, || y.backward_with(&dy).unwrap());
        assert!(launches <= 3, "{launches}");
        for (lazy, eager) in leaves.iter().zip(&eager) {
            close(&lazy.grad().unwrap(), &eager.grad().unwrap());
        }
    }
}

#[test]
fn what_is_kept_comes_from_the_same_kernel_and_what_is_dropped_from_none() {
    let device = test_device().unwrap();
    let x = tensor(&device, &[4, 40], 0.0);
    let ((a, b, mask), launches) = counted(&device, || {
        lazy(|| {
            let a = x.exp()?;
            let b = a.add_scalar(1.0)?.sqrt()?;
            let mask = b.lt(&a)?;
            let _ = b.sin()?;
            Ok((a, b, mask))
        })
        .unwrap()
    });
    assert_eq!(launches, 1);
    let [ea, eb] = [x.exp().unwrap(), x.exp().unwrap().add_scalar(1.0).unwrap().sqrt().unwrap()];
    close(&a, &ea);
    close(&b, &eb);
    assert_eq!(mask.to_u32().unwrap(), eb.lt(&ea).unwrap().to_u32().unwrap());
    let ((), launches) = counted(&device, || {
        lazy(|| {
            let _ = x.exp()?.square()?;
            Ok(())
        })
        .unwrap();
    });
    assert_eq!(launches, 0);
}

#[test]
fn a_use_by_another_op_or_the_host_computes_what_waits() {
    let device = test_device().unwrap();
    let x = tensor(&device, &[6, 6], 0.0);
    lazy(|| {
        let y = x.exp()?.add_scalar(1.0)?;
        let (y, exponentials) = (y.to_vec()?, x.to_vec()?.into_iter().map(f32::exp));
        assert!(y.iter().zip(exponentials).all(|(y, e)| (y - e - 1.0).abs() <= 1e-6 * y));
        let z = x.square()?;
        let product = z.matmul(&x)?.neg()?;
        let view = x.cos()?.transpose(0, 1)?.add(&product)?;
        let expected =
            crate::tape::eagerly(|| x.cos()?.transpose(0, 1)?.add(&x.square()?.matmul(&x)?.neg()?))?;
        close(&view, &expected);
        Ok(())
    })
    .unwrap();
}

/// A tree reads the inputs as they were when the op was called, and writes to a result persist.
#[test]
fn writes_come_in_the_order_of_the_program() {
    let device = test_device().unwrap();
    let x = Tensor::from_f32(&device, [3], &[1.0, 2.0, 3.0], DType::F32).unwrap();
    let [y, z, w] = lazy(|| {
        let y = x.mul_scalar(10.0)?;
        x.set_f32(&[0.0; 3])?;
        let z = x.add_scalar(1.0)?;
        z.set_f32(&[7.0; 3])?;
        let w = z.neg()?;
        device.fill(z.storage(), &[0])?;
        Ok([y, z, w])
    })
    .unwrap();
    assert_eq!(y.to_vec().unwrap(), [10.0, 20.0, 30.0]);
    assert_eq!(z.to_vec().unwrap(), [0.0; 3]);
    assert_eq!(w.to_vec().unwrap(), [-7.0; 3]);
}

#[test]
fn a_leaf_that_was_overwritten_is_an_error_in_the_backward() {
    let device = test_device().unwrap();
    let x = tensor(&device, &[4], 0.0).parameter("x");
    let y = lazy(|| x.square()?.sum(&[], false)).unwrap();
    x.set_f32(&[1.0; 4]).unwrap();
    let e = y.backward().unwrap_err();
    assert!(e.message().starts_with("backward of lazy: input 0 (x), a tensor of shape [4]"), "{e}");
    // Results may change, because the gradient depends only on the inputs.
    let y = lazy(|| x.square()).unwrap();
    y.set_f32(&[0.0; 4]).unwrap();
    y.backward_with(&Tensor::ones(&device, [4], DType::F32).unwrap()).unwrap();
    assert_eq!(x.grad().unwrap().to_vec().unwrap(), [2.0; 4]);
}

#[test]
fn gradients_flow_where_they_do_eagerly() {
    let device = test_device().unwrap();
    let run = |x: &Tensor, w: &Tensor| -> Result<Tensor> {
        let a = x.mul(w)?;
        let stopped = a.detach().exp()?;
        let off = no_grad(|| a.sin())?;
        assert!(!stopped.requires_grad() && !off.requires_grad());
        // A leaf over the same memory stops the gradient.
        let leaf = a.parameter("leaf");
        a.retain_grad();
        let y = a.mul(&stopped)?.add(&off.mul(&a)?)?.add(&leaf.square()?)?;
        y.sum(&[], false)?.backward()?;
        let inner = a.grad().ok_or_else(|| Error::internal("no gradient"))?;
        let leaf = leaf.grad().ok_or_else(|| Error::internal("no gradient"))?;
        crate::tape::eagerly(|| inner.add(&leaf))
    };
    let leaves = || [tensor(&device, &[3, 5], 0.0).parameter("x"), tensor(&device, &[5], 1.0).parameter("w")];
    let ([x, w], [lx, lw]) = (leaves(), leaves());
    let expected = run(&x, &w).unwrap();
    let got = lazy(|| run(&lx, &lw)).unwrap();
    close(&got, &expected);
    close(&lx.grad().unwrap(), &x.grad().unwrap());
    close(&lw.grad().unwrap(), &w.grad().unwrap());
}

#[test]
fn scopes_within_scopes_are_one() {
    let device = test_device().unwrap();
    let x = tensor(&device, &[9], 0.0);
    let inner = |x: &Tensor| lazy(|| x.exp()?.add_scalar(1.0));
    let (y, launches) = counted(&device, || lazy(|| inner(&x)?.log()?.add(&inner(&x)?)).unwrap());
    assert_eq!(launches, 1);
    let e = x.exp().unwrap().add_scalar(1.0).unwrap();
    close(&y, &e.log().unwrap().add(&e).unwrap());
    // Afterwards, ops run eagerly.
    assert_eq!(counted(&device, || x.exp().unwrap().neg().unwrap()).1, 2);
}

/// The message is the same for deferred and eager ops.
#[test]
fn errors_come_from_the_op_that_made_them() {
    let device = test_device().unwrap();
    let (x, w) = (tensor(&device, &[3, 5], 0.0), tensor(&device, &[4], 1.0));
    let half = w.to_dtype(DType::F16).unwrap();
    let integers = Tensor::from_u32(&device, [3], &[1, 2, 3]).unwrap();
    type Wrong<'a> = Box<dyn Fn() -> Result<Tensor> + 'a>;
    let wrong: [Wrong<'_>; 5] = [
        Box::new(|| x.exp()?.add(&w)),
        Box::new(|| w.mul(&half)),
        Box::new(|| integers.gelu()),
        Box::new(|| x.sum(&[7], false)),
        Box::new(|| x.lt(&w)),
    ];
    for f in wrong {
        let (eager, waits) = (f().unwrap_err(), lazy(&f).unwrap_err());
        assert_eq!((eager.kind(), eager.message()), (waits.kind(), waits.message()));
    }
    // Results of a failed scope that are still in use are computed.
    let mut kept = None;
    let failed = lazy(|| {
        kept = Some(x.exp()?);
        x.add(&w)
    });
    assert!(failed.is_err());
    close(&kept.unwrap(), &x.exp().unwrap());
}

#[test]
fn what_was_never_computed_is_an_error() {
    let device = test_device().unwrap();
    let x = tensor(&device, &[4], 0.0);
    let scope = Lazy::start();
    let y = x.exp().unwrap();
    drop(scope);
    let e = y.to_vec().unwrap_err();
    assert!(e.message().contains("lazy scope"), "{e}");
    // Ops deferred by another thread cannot be used either.
    let scope = Lazy::start();
    let y = x.exp().unwrap();
    let e = std::thread::scope(|s| s.spawn(|| y.neg().map(drop)).join().unwrap()).unwrap_err();
    assert!(e.message().contains("another thread"), "{e}");
    scope.finish().unwrap();
    close(&y, &x.exp().unwrap());
}

#[test]
fn many_ops_and_many_inputs_are_several_kernels() {
    let device = test_device().unwrap();
    let x = tensor(&device, &[16], 0.0);
    let (y, launches) = counted(&device, || {
        lazy(|| (0..200).try_fold(x.clone(), |y, i| y.mul_scalar(0.9)?.add_scalar(i as f32 * 1e-3))).unwrap()
    });
    assert!((4..=8).contains(&launches), "{launches}");
    let expected =
        (0..200).try_fold(x.clone(), |y, i| y.mul_scalar(0.9)?.add_scalar(i as f32 * 1e-3)).unwrap();
    close(&y, &expected);
    let many: Vec<Tensor> = (0..40).map(|i| tensor(&device, &[16], i as f32)).collect();
    let sum = |many: &[Tensor]| many.iter().try_fold(x.clone(), |y, t| y.add(t));
    close(&lazy(|| sum(&many)).unwrap(), &sum(&many).unwrap());
}

#[test]
fn tensors_of_no_element_and_of_no_axis() {
    for device in devices() {
        for dims in [&[0, 3][..], &[3, 0], &[], &[1, 1]] {
            let x = tensor(&device, dims, 0.3).parameter("x");
            let f = |x: &Tensor| x.exp()?.add_scalar(1.0)?.softmax(-1)?.mul(x)?.sum(&[], true);
            let g = |x: &Tensor| x.exp()?.add_scalar(1.0)?.sum(&[], false)?.log();
            for (expected, got) in [(g(&x), lazy(|| g(&x))), (f(&x), lazy(|| f(&x)))] {
                match (expected, got) {
                    (Ok(expected), Ok(got)) => close(&got, &expected),
                    (expected, got) => assert_eq!(expected.is_err(), got.is_err(), "{dims:?}"),
                }
            }
        }
    }
}

/// 16-bit results are rounded once.
#[test]
fn values_between_nodes_are_not_rounded() {
    for device in devices() {
        let x = tensor(&device, &[3, 21], 0.0);
        for dtype in [DType::F16, DType::Bf16] {
            let narrow = x.to_dtype(dtype).unwrap();
            let f =
                |x: &Tensor| x.mul_scalar(1.7)?.add_scalar(100.0)?.add_scalar(-100.0)?.to_dtype(DType::F32);
            let wide = f(&narrow.to_dtype(DType::F32).unwrap()).unwrap();
            close(&lazy(|| f(&narrow)).unwrap(), &wide);
            assert_eq!(lazy(|| narrow.exp()?.log()).unwrap().dtype(), dtype);
        }
    }
}

#[test]
fn a_step_is_captured_lazily_and_replays_its_bits() {
    let device = test_device().unwrap();
    let [x, w] = [tensor(&device, &[8, 24], 0.0), tensor(&device, &[24, 24], 1.0)];
    let step = || {
        lazy(|| {
            let w = w.parameter("w");
            let y = x.matmul(&w)?.add_scalar(0.1)?.gelu()?.mul(&x)?;
            let loss = y.square()?.mean(&[-1], true)?.sum(&[], false)?;
            loss.backward()?;
            Ok((loss, w.grad().ok_or_else(|| Error::internal("no gradient"))?))
        })
    };
    let once = step().unwrap();
    let bytes = |(a, b): &(Tensor, Tensor)| (a.to_bytes().unwrap(), b.to_bytes().unwrap());
    let (graph, out) = Graph::capture(&device, step).unwrap();
    graph.replay().unwrap();
    assert_eq!(bytes(&out), bytes(&once));
    // A plan puts several tensors into one buffer. Memory checkers do not track such parts.
    if !device.settings().exact_memory {
        let plan = BufferPlan::new(&device, &Trace::dry_run(&device, step).unwrap()).unwrap();
        let (graph, out) = Graph::planned(&device, &plan, step).unwrap();
        graph.replay().unwrap();
        assert_eq!(bytes(&out), bytes(&once));
    }
    // Ops pending when a capture begins are not part of it; ops pending when a replay begins are computed first.
    let captured = lazy(|| {
        let before = x.exp()?;
        let (graph, y) = Graph::capture(&device, || before.add_scalar(1.0))?;
        assert_eq!(graph.commands().0, 1);
        x.set_f32(&[0.0; 192])?;
        graph.replay()?;
        Ok(y)
    })
    .unwrap();
    close(&captured, &tensor(&device, &[8, 24], 0.0).exp().unwrap().add_scalar(1.0).unwrap());
}

#[test]
fn trees_are_shown() {
    let device = test_device().unwrap();
    let x = tensor(&device, &[3, 5], 0.0);
    let (_, text) = explain_lazy(|| x.mul_scalar(2.0)?.sum(&[-1], true)).unwrap();
    for part in ["mul_scalar(v0, 2.0)  [3, 5]", "sum(v1, axes [-1])  [3, 1]", "__kernel void fused_"] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}

/// Collects log messages.
#[derive(Default)]
struct Log(std::sync::Arc<std::sync::Mutex<String>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Visitor<'a>(&'a mut String);
        impl tracing::field::Visit for Visitor<'_> {
            fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                *self.0 += &format!("{value:?}\n");
            }
        }
        event.record(&mut Visitor(&mut self.0.lock().unwrap()));
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Logs each tree if `NETCL_DEBUG=fuse` is set.
#[test]
fn trees_are_logged_where_that_is_asked_for() {
    for debug in [vec![], vec!["fuse".to_owned()]] {
        let shown = !debug.is_empty();
        let device = Device::open("sim", &Settings { debug, ..Settings::default() }).unwrap();
        let x = tensor(&device, &[3, 5], 0.0);
        let log = Log::default();
        let text = std::sync::Arc::clone(&log.0);
        tracing::subscriber::with_default(log, || lazy(|| x.exp()?.neg()).unwrap());
        let text = text.lock().unwrap();
        let found = ["exp, neg:", "v1 = exp(v0)", "__kernel void fused_"].map(|part| text.contains(part));
        assert_eq!(found, [shown; 3], "{text}");
    }
}
