//! The traits of operations: [`Op`], and [`MultiOp`] for several results.
//!
//! An operation has its f64 reference and its samples in its file; the suite, the self-test, the benchmark and the tuner use them. Some operations
//! have several results, because one pass over memory computes their gradients together. On the tape these results share a node. The backward visits
//! it when the gradients of all used results are available.

use super::call::{Attributes, Call};
use super::{check, observe};
use crate::array::Array;
use crate::suite::Sample;
use crate::tape::Term;
use crate::{Error, Result, Tensor, tape};
use netcl_device::ErrorKind;
use netcl_kernel::tune::take_crash;

/// An operation of `N` tensors with one result: forward, gradient, f64 reference and samples in one place.
pub trait Op<const N: usize>: Clone + Send + 'static {
    /// Name in errors, profiler and suite.
    const NAME: &'static str;
    /// Reason why no sample is empty, if that makes no sense.
    const NO_EMPTY_SAMPLE: Option<&'static str> = None;
    /// Reason why no sample has inputs of one element, if that makes no sense.
    const NO_SINGLE_SAMPLE: Option<&'static str> = None;
    /// Reason why no sample has extreme values, if none does.
    const NO_EXTREME_SAMPLE: Option<&'static str> = None;
    /// Values that the forward saves for the backward.
    type Saved: Send + 'static;
    /// Computes the result. Recording is off: operations used here leave nothing on the tape.
    fn forward(&self, inputs: [&Tensor; N]) -> Result<(Tensor, Self::Saved)>;
    /// Computes the gradients of the inputs from that of the result. An entry is `None` without a gradient or if `requires_grad` is false.
    fn backward(&self, inputs: [&Tensor; N], saved: &Self::Saved, dy: &Tensor)
    -> Result<[Option<Tensor>; N]>;
    /// Computes the result in f64 on the host, by its definition.
    fn reference(&self, inputs: [&Array; N]) -> Array;
    /// Returns the samples for the suite. It fails without a sample with an empty input, one whose inputs have one element each, and one with
    /// extreme values.
    fn samples() -> Vec<Sample<Self, N>>;
    /// Returns its call by name, and the calls of functions composed of other operations that are listed with it.
    fn calls() -> Vec<Call>;

    /// Returns the name that callers use, if one type implements several operations. A call has this name.
    fn called(&self) -> &'static str {
        Self::NAME
    }
    /// Returns the attributes of that call for this operation.
    fn attributes(&self) -> Attributes {
        Vec::new()
    }
    /// Returns the tensors of that call: the operation's inputs, without unused ones.
    fn given<'a>(&self, inputs: [&'a Tensor; N]) -> Vec<Option<&'a Tensor>> {
        inputs.map(Some).into()
    }

    /// Returns the operation as a node of an expression tree over these inputs, checked as in [`Op::forward`]; `None` if it cannot be a node.
    #[doc(hidden)]
    fn term(&self, _: [&Tensor; N]) -> Result<Option<Term>> {
        Ok(None)
    }

    /// Runs the forward, and records it on the tape if an input needs a gradient. Within [`lazy`](crate::lazy), nodes of a tree are deferred.
    fn apply(self, inputs: [&Tensor; N]) -> Result<Tensor> {
        let name = self.called();
        check::one_device(name, &inputs)?;
        if !observe::watching()
            && let Some(y) = tape::defer(name, &inputs, &|| self.term(inputs))?
        {
            return Ok(y);
        }
        let observed = observe::begin(name, || (kept(&self.given(inputs)), self.attributes()));
        let (y, saved) = forward_pass(name, &inputs, || self.forward(inputs))?;
        let y = tape::record(name, &inputs, y, move |inputs, dy| {
            let refs: [&Tensor; N] = std::array::from_fn(|i| &inputs[i]);
            backward_pass(|| self.backward(refs, &saved, dy).map(Into::into))
        })?;
        observe::end(observed, std::slice::from_ref(&y));
        Ok(y)
    }
}

/// An operation with `M` results. Most operations have one result, as [`Op`]. This trait is for operations whose gradients are computed together,
/// in one pass over memory. The suite, bench and self-test accept both.
pub trait MultiOp<const N: usize, const M: usize>: Clone + Send + 'static {
    /// See [`Op::NAME`].
    const NAME: &'static str;
    /// See [`Op::NO_EMPTY_SAMPLE`].
    const NO_EMPTY_SAMPLE: Option<&'static str> = None;
    /// See [`Op::NO_SINGLE_SAMPLE`].
    const NO_SINGLE_SAMPLE: Option<&'static str> = None;
    /// See [`Op::NO_EXTREME_SAMPLE`].
    const NO_EXTREME_SAMPLE: Option<&'static str> = None;
    /// Values that the forward saves for the backward.
    type Saved: Send + 'static;
    /// Computes the results. Recording is off.
    fn forward(&self, inputs: [&Tensor; N]) -> Result<([Tensor; M], Self::Saved)>;
    /// Computes the gradients of the inputs from those of the results, which are `None` for unused results.
    fn backward(
        &self,
        inputs: [&Tensor; N],
        saved: &Self::Saved,
        dys: [Option<&Tensor>; M],
    ) -> Result<[Option<Tensor>; N]>;
    /// Computes the results in f64 on the host.
    fn reference(&self, inputs: [&Array; N]) -> [Array; M];
    /// See [`Op::samples`].
    fn samples() -> Vec<Sample<Self, N>>;
    /// See [`Op::calls`].
    fn calls() -> Vec<Call>;

    /// See [`Op::called`].
    fn called(&self) -> &'static str {
        Self::NAME
    }
    /// See [`Op::attributes`].
    fn attributes(&self) -> Attributes {
        Vec::new()
    }
    /// See [`Op::given`].
    fn given<'a>(&self, inputs: [&'a Tensor; N]) -> Vec<Option<&'a Tensor>> {
        inputs.map(Some).into()
    }

    /// Runs the forward, and records it on the tape as one node if an input needs a gradient.
    fn apply(self, inputs: [&Tensor; N]) -> Result<[Tensor; M]> {
        let name = self.called();
        check::one_device(name, &inputs)?;
        let observed = observe::begin(name, || (kept(&self.given(inputs)), self.attributes()));
        let (ys, saved) = forward_pass(name, &inputs, || self.forward(inputs))?;
        let ys = tape::record_all(name, &inputs, ys, move |inputs, dys| {
            let refs: [&Tensor; N] = std::array::from_fn(|i| &inputs[i]);
            let dys: [Option<&Tensor>; M] = std::array::from_fn(|i| dys[i].as_ref());
            backward_pass(|| self.backward(refs, &saved, dys).map(Into::into))
        })?;
        observe::end(observed, &ys);
        Ok(ys)
    }
}

impl<O: Op<N>, const N: usize> MultiOp<N, 1> for O {
    const NAME: &'static str = <O as Op<N>>::NAME;
    const NO_EMPTY_SAMPLE: Option<&'static str> = <O as Op<N>>::NO_EMPTY_SAMPLE;
    const NO_SINGLE_SAMPLE: Option<&'static str> = <O as Op<N>>::NO_SINGLE_SAMPLE;
    const NO_EXTREME_SAMPLE: Option<&'static str> = <O as Op<N>>::NO_EXTREME_SAMPLE;
    type Saved = <O as Op<N>>::Saved;
    fn forward(&self, inputs: [&Tensor; N]) -> Result<([Tensor; 1], Self::Saved)> {
        Op::forward(self, inputs).map(|(y, saved)| ([y], saved))
    }
    fn backward(
        &self,
        inputs: [&Tensor; N],
        saved: &Self::Saved,
        [dy]: [Option<&Tensor>; 1],
    ) -> Result<[Option<Tensor>; N]> {
        match dy {
            Some(dy) => Op::backward(self, inputs, saved, dy),
            None => Ok([const { None }; N]),
        }
    }
    fn reference(&self, inputs: [&Array; N]) -> [Array; 1] {
        [Op::reference(self, inputs)]
    }
    /// [`Op::apply`], which is not deferred within [`lazy`](crate::lazy).
    fn apply(self, inputs: [&Tensor; N]) -> Result<[Tensor; 1]> {
        tape::eagerly(|| Op::apply(self, inputs)).map(|y| [y])
    }
    fn called(&self) -> &'static str {
        Op::called(self)
    }
    fn calls() -> Vec<Call> {
        <O as Op<N>>::calls()
    }
    fn attributes(&self) -> Attributes {
        Op::attributes(self)
    }
    fn given<'a>(&self, inputs: [&'a Tensor; N]) -> Vec<Option<&'a Tensor>> {
        Op::given(self, inputs)
    }
    fn samples() -> Vec<Sample<Self, N>> {
        <O as Op<N>>::samples()
    }
}

/// Runs the forward pass of an op: without recording, and with its launches under the op's name.
fn forward_pass<R>(name: &'static str, inputs: &[&Tensor], forward: impl Fn() -> Result<R>) -> Result<R> {
    let mut out = None;
    run_forward(name, inputs, &mut || {
        out = Some(forward()?);
        Ok(())
    })?;
    out.ok_or_else(|| Error::internal(format!("{name}: the forward pass does not have a result")))
}

fn run_forward(
    name: &'static str,
    inputs: &[&Tensor],
    forward: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    let mut run = || tape::eagerly(|| tape::no_grad(|| retried(forward)));
    match inputs.first() {
        Some(x) => x.device().within((tape::current_layer(), name), run),
        None => run(),
    }
}

/// Runs `f`, and again whenever compiling a further kernel crashed the driver's compiler process and thus disabled that variant: `f` then chooses
/// another one. `f` must compute its results anew each time.
fn retried(f: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    let mut crashed: Vec<&'static str> = Vec::new();
    loop {
        match f() {
            Err(e) if e.kind() == ErrorKind::Build => match take_crash() {
                Some(kernel) if !crashed.contains(&kernel) => {
                    tracing::info!("trying another variant: {}", e.message());
                    crashed.push(kernel);
                }
                _ => return Err(e),
            },
            outcome => return outcome,
        }
    }
}

/// Runs the backward pass of an op.
fn backward_pass(backward: impl Fn() -> Result<Vec<Option<Tensor>>>) -> Result<Vec<Option<Tensor>>> {
    let mut grads = Vec::new();
    retried(&mut || {
        grads = backward()?;
        Ok(())
    })?;
    Ok(grads)
}

fn kept(inputs: &[Option<&Tensor>]) -> Vec<Option<Tensor>> {
    inputs.iter().map(|x| x.cloned()).collect()
}

/// Returns [`MultiOp::calls`] of an operation, for its entry in the list.
pub(super) fn calls<O: MultiOp<N, M>, const N: usize, const M: usize>() -> Vec<Call> {
    O::calls()
}

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used)] // helpers of tests
mod tests {
    use crate::ops::matmul::matmul;
    use crate::ops::prelude::*;
    use netcl_device::null::NullDriver;
    use netcl_device::{Builders, Capabilities, DeviceKind, Settings};
    use netcl_kernel::tune::Tuning;

    /// Script of a compiler that exits at the first variant of a matrix product, and compiles everything else.
    const CRASHES: &str = r#"echo ready; while read -r line; do
        name=$(printf %s "$line" | sed -n 's/.*\/\/ \(matmul_[a-z0-9_]*\).*/\1/p')
        [ -n "$name" ] && [ ! -e "$0" ] && echo "$name" > "$0"
        [ -n "$name" ] && [ "$name" = "$(cat "$0")" ] && kill -SEGV $$
        echo built; done"#;

    #[test]
    fn an_operation_takes_the_next_variant_where_the_compiler_crashes() {
        let folder = tempfile::tempdir().unwrap();
        let crashed = folder.path().join("crashed");
        let arguments = vec!["-c".into(), CRASHES.into(), crashed.clone().into()];
        let builders = Some(Builders::new("/bin/sh".into(), arguments));
        let settings = Settings { cache_dir: Some(folder.path().into()), builders, ..Settings::default() };
        // Enough for several variants.
        let card = Capabilities { local_mem: 64 << 10, ..Capabilities::floor("odd:0", DeviceKind::Gpu) };
        let device = Device::from_driver(Box::new(NullDriver::new(card)), settings);
        let zeros = |shape: [usize; 2]| Tensor::zeros(&device, shape, DType::F32).unwrap();
        // A product with few rows: its own kernel, and the tile that computes every product.
        let (x, w) = (zeros([1, 256]), zeros([256, 256]));
        matmul(&x, &w.parameter("w")).unwrap().backward_with(&x).unwrap();
        let crashed = std::fs::read_to_string(&crashed).unwrap();
        let suspects = Tuning::of(&device).quarantine().suspects();
        assert_eq!(suspects.iter().map(|s| s.kernel.as_str()).collect::<Vec<_>>(), [crashed.trim()]);
    }
}
