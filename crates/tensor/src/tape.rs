//! The tape: which op created each tensor, and the backward pass from a loss.
//!
//! Recording is implicit, as in PyTorch: an op whose inputs need gradients creates a node. Nodes have increasing numbers. Visiting them in
//! descending order therefore reaches every consumer of a tensor before its producer. The tensors that a node saved are freed when the
//! backward passes it.
//!
//! If an input or result that a backward reads was overwritten after the forward, the backward fails, as in PyTorch
//! (`tensor/saved.rs`). A gradient that a leaf collects owns its memory (`tape/collect.rs`).

use crate::tensor::autograd::{Autograd, BackwardFn, Body, CompletedOp, Hooks, TapeNode};
use crate::tensor::saved::{SavedVersions, ShapeAndType, described};
use crate::{Error, Result, Tensor};
use netcl_device::deferred::Promise;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

mod accumulate;
mod collect;
mod deferred;
mod gradient_sink;
mod hooks;
mod on_host;
mod recompute;
mod rollback;
#[cfg(test)]
mod tests;

pub use crate::tensor::autograd::Hook;
pub use accumulate::{accumulate_in_place, later_gradients_apart, replace_in_place};
use collect::Shared;
pub(crate) use collect::keep;
pub use deferred::Term;
pub(crate) use deferred::{DeferredNode, Scope, defer, eagerly, in_scope, settle};
pub use gradient_sink::{GradientSink, with_gradient_sink};
use hooks::Wanted;
pub use hooks::gradients;
pub use on_host::HostMemory;
pub(crate) use recompute::gradients_of;
pub use recompute::{checkpoint, checkpoint_all, checkpoint_rows, recording};
pub use rollback::Rollback;

thread_local! {
    static RECORDING: Cell<bool> = const { Cell::new(true) };
    static ANOMALY: Cell<bool> = const { Cell::new(false) };
    static LAYER: Cell<u32> = const { Cell::new(0) };
    /// Whether a result is being checked. The operations of the check are not checked themselves.
    static LOOKING: Cell<bool> = const { Cell::new(false) };
}

struct Restore<T: Copy + 'static>(&'static std::thread::LocalKey<Cell<T>>, T);
impl<T: Copy> Drop for Restore<T> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

/// Runs `f` without recording on this thread.
pub fn no_grad<R>(f: impl FnOnce() -> R) -> R {
    let _restore = Restore(&RECORDING, RECORDING.replace(false));
    f()
}

/// Runs `f` and checks every op's result on this thread: the first NaN or infinity is an error that names op and tensor. Each check waits
/// for the device.
pub fn detect_anomaly<R>(on: bool, f: impl FnOnce() -> R) -> R {
    let _restore = Restore(&ANOMALY, ANOMALY.replace(on));
    f()
}

/// Runs `f` as layer `number` of a model, counted from 1, on this thread. Reports of memory use refer to it.
pub fn layer<R>(number: u32, f: impl FnOnce() -> R) -> R {
    let _restore = Restore(&LAYER, LAYER.replace(number));
    f()
}

/// Returns the current layer of this thread; 0 for none.
pub(crate) fn current_layer() -> u32 {
    LAYER.get()
}

/// Returns whether [`detect_anomaly`] is on. If so, inputs must be unchanged when an op's result is checked.
pub(crate) fn detects_anomaly() -> bool {
    ANOMALY.get()
}

/// Returns whether an op with these inputs is recorded on the tape.
pub(crate) fn records(inputs: &[&Tensor]) -> bool {
    RECORDING.get() && inputs.iter().any(|t| t.requires_grad())
}

/// Returns whether an operation on `x` would be recorded.
pub fn records_gradient(x: &Tensor) -> bool {
    records(&[x])
}

static NUMBER: AtomicU64 = AtomicU64::new(1);

/// Records the result of `op` on the tape, if any input needs a gradient.
pub(crate) fn record(
    op: &'static str,
    inputs: &[&Tensor],
    y: Tensor,
    backward: impl FnOnce(&[Tensor], &Tensor) -> Result<Vec<Option<Tensor>>> + Send + 'static,
) -> Result<Tensor> {
    if !is_recorded(op, inputs, std::slice::from_ref(&y))? {
        return Ok(y);
    }
    let backward = move |inputs: &[Tensor], dys: &[Option<Tensor>]| match dys {
        [Some(dy)] => backward(inputs, dy),
        _ => Err(Error::internal(format!("backward of {op}: expected the gradient of one result"))),
    };
    let node = node(op, inputs, std::slice::from_ref(&y), Box::new(backward))?;
    Ok(made_by(&node, 0, &y))
}

/// Records the results of `op` on the tape, if any input needs a gradient. They share one node: `backward` runs once, when the gradients of
/// all used results are available.
pub(crate) fn record_all<const M: usize>(
    op: &'static str,
    inputs: &[&Tensor],
    ys: [Tensor; M],
    backward: impl FnOnce(&[Tensor], &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> + Send + 'static,
) -> Result<[Tensor; M]> {
    if !is_recorded(op, inputs, &ys)? {
        return Ok(ys);
    }
    let node = node(op, inputs, &ys, Box::new(backward))?;
    let mut slot = 0;
    Ok(ys.map(|y| {
        slot += 1;
        made_by(&node, slot - 1, &y)
    }))
}

/// Records results that the caller computed off the tape as those of one op, if any input needs a gradient. This is meant for functions
/// with gradients that are written outside of Rust. `backward` receives the gradients of the results, with `None` for an unused result. It
/// returns the gradients of the inputs, with `None` for an input without a gradient. It runs once, without recording.
///
/// # Errors
/// `Shape` in the backward, if the numbers of gradients and inputs differ.
pub fn function(
    op: &'static str,
    inputs: &[&Tensor],
    ys: Vec<Tensor>,
    backward: impl FnOnce(&[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> + Send + 'static,
) -> Result<Vec<Tensor>> {
    let ys: Vec<Tensor> = ys.iter().map(Tensor::detach).collect();
    let backward = move |inputs: &[Tensor], dys: &[Option<Tensor>]| {
        let grads = backward(dys)?;
        match grads.len() == inputs.len() {
            true => Ok(grads),
            false => Err(Error::shape(format!(
                "backward of {op}: {} for {}, expected one for each",
                crate::counted(grads.len(), "gradient"),
                crate::counted(inputs.len(), "input")
            ))),
        }
    };
    if !is_recorded(op, inputs, &ys)? {
        return Ok(ys);
    }
    let node = node(op, inputs, &ys, Box::new(backward))?;
    Ok(ys.iter().enumerate().map(|(slot, y)| made_by(&node, slot, y)).collect())
}

/// Checks the results of an op as the debug modes ask. Returns whether the op is put on the tape: whether any input needs a gradient.
fn is_recorded(op: &'static str, inputs: &[&Tensor], ys: &[Tensor]) -> Result<bool> {
    ys.iter().try_for_each(|y| check_layout(op, y))?;
    if checks_result(ys.first()) {
        ys.iter().try_for_each(|y| check_finite(("forward", op, LAYER.get()), y, inputs))?;
    }
    // Integers and masks do not carry gradients: the gradient ends at them, as in PyTorch.
    Ok(records(inputs) && ys.iter().any(|y| y.dtype().is_float()))
}

/// Creates the node of an op, if any input needs a gradient.
fn node(op: &'static str, inputs: &[&Tensor], ys: &[Tensor], backward: BackwardFn) -> Result<Arc<TapeNode>> {
    // The ops that made the inputs must have smaller numbers.
    if inputs.iter().any(|x| x.storage().promise() == Promise::Open) {
        settle()?;
    }
    let node = Arc::new(open_node(op));
    let results = ys.iter().map(|y| (y.shape().clone(), y.dtype())).collect();
    let saved = SavedVersions::now(inputs.iter().copied().chain(ys));
    fill(&node, inputs, (results, saved), backward)?;
    Ok(node)
}

/// Creates the node of an op that has not run.
fn open_node(op: &'static str) -> TapeNode {
    TapeNode { op, layer: LAYER.get(), done: OnceLock::new(), body: Mutex::new(None) }
}

/// Completes `node` after its op has run.
fn fill(
    node: &TapeNode,
    inputs: &[&Tensor],
    (results, saved): (Vec<ShapeAndType>, SavedVersions),
    backward: BackwardFn,
) -> Result<()> {
    let inputs = inputs.iter().map(|t| t.to_keep()).collect::<Result<Vec<_>>>()?;
    *node.body.lock().unwrap_or_else(PoisonError::into_inner) = Some(Body { inputs, backward, saved });
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    node.done
        .set(CompletedOp { number, results })
        .map_err(|_| Error::internal(format!("{} ran twice", node.op)))
}

/// Returns `y` as result `slot` of a node.
fn made_by(node: &Arc<TapeNode>, slot: usize, y: &Tensor) -> Tensor {
    let autograd = Autograd {
        node: Some(Arc::clone(node)),
        slot,
        name: None,
        grad: Mutex::new(None),
        retain: AtomicBool::new(false),
        again: None,
        given_up: false,
        frozen: AtomicBool::new(false),
        hooks: Hooks::default(),
    };
    Tensor::from_parts(y.storage().clone(), y.layout().clone(), y.dtype(), Some(autograd))
}

/// Returns whether results of operations are checked: on this thread, or on their device, whose commands then run at once.
fn checks_result(y: Option<&Tensor>) -> bool {
    if LOOKING.get() {
        return false;
    }
    ANOMALY.get() || y.is_some_and(|y| y.device().debug().nan && !y.device().is_capturing())
}

/// Rejects a result that exceeds its buffer, if the device's debug mode checks this.
fn check_layout(op: &str, y: &Tensor) -> Result<()> {
    if !y.device().debug().shapes {
        return Ok(());
    }
    let (layout, size) = (y.layout(), y.dtype().size());
    let end = layout.offset.checked_add(layout.span()).and_then(|n| n.checked_mul(size));
    let there = y.storage().bytes();
    if layout.strides.len() == layout.shape.rank() && end.is_some_and(|end| end <= there || y.count() == 0) {
        return Ok(());
    }
    let layer = in_layer(LAYER.get());
    Err(Error::shape(format!(
        "shapes: the result of {op}{layer}, shape {} with strides {:?} from element {} on, exceeds its buffer of {there} bytes",
        layout.shape, layout.strides, layout.offset
    )))
}

fn in_layer(layer: u32) -> String {
    if layer == 0 { String::new() } else { format!(" in layer {layer}") }
}

/// Returns the first element that is not finite, with its index on each axis.
fn first_not_finite(y: &Tensor) -> Result<String> {
    let values = no_grad(|| y.detach().to_vec())?;
    let Some(at) = values.iter().position(|v| !v.is_finite()) else { return Ok(String::new()) };
    let index: Vec<usize> =
        y.shape().strides().iter().zip(y.dims()).map(|(s, n)| at / s.max(&1) % n.max(&1)).collect();
    Ok(format!(", first {} at {index:?}", values[at]))
}

fn check_finite((pass, op, layer): (&str, &str, u32), y: &Tensor, inputs: &[&Tensor]) -> Result<()> {
    // The checks use ops themselves, which must not be checked.
    let _restore = Restore(&LOOKING, LOOKING.replace(true));
    y.device().outside_capture(|| look((pass, op, layer), y, inputs))
}

fn look((pass, op, layer): (&str, &str, u32), y: &Tensor, inputs: &[&Tensor]) -> Result<()> {
    if !y.dtype().is_float() || no_grad(|| y.all_finite())? {
        return Ok(());
    }
    let mut from: Vec<String> = Vec::new();
    for (i, input) in inputs.iter().enumerate() {
        let state = if !input.dtype().is_float() || no_grad(|| input.all_finite())? {
            "finite"
        } else {
            "not finite"
        };
        from.push(format!(
            "input {i} {}{} is {state}",
            input.name().map_or(String::new(), |n| format!("{n} ")),
            input.shape()
        ));
    }
    Err(Error::launch(format!(
        "anomaly: the {pass} of {op}{} produced a NaN or infinity in a tensor of shape {} ({}){}: {}. Usual causes: a learning rate too \
         high, f16 without loss scaling, a logarithm or root of a negative number",
        in_layer(layer),
        y.shape(),
        y.dtype(),
        first_not_finite(y)?,
        from.join(", ")
    )))
}

impl Tensor {
    /// Returns a leaf that collects its gradient in [`Tensor::grad`] and shares this tensor's storage. `name` appears in errors.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Self {
        self.named(Some(name), false)
    }
    /// Returns a leaf for an operation's internal use. It always collects its gradient, independently of the parameters' settings.
    pub(crate) fn leaf(&self) -> Self {
        self.named(None, false)
    }
    /// Returns a tensor with a name that does not collect a gradient.
    #[must_use]
    pub fn frozen(&self, name: &str) -> Self {
        self.named(Some(name), true)
    }
    fn named(&self, name: Option<&str>, frozen: bool) -> Self {
        let autograd = Autograd {
            node: None,
            slot: 0,
            name: name.map(Into::into),
            grad: Mutex::new(None),
            retain: AtomicBool::new(true),
            again: None,
            given_up: false,
            frozen: AtomicBool::new(frozen),
            hooks: Hooks::default(),
        };
        Self::from_parts(self.storage().clone(), self.layout().clone(), self.dtype(), Some(autograd))
    }
    /// Returns whether gradients flow to this tensor.
    pub fn requires_grad(&self) -> bool {
        self.0.autograd.as_ref().is_some_and(|a| !a.frozen.load(Ordering::Relaxed))
    }
    /// Sets whether a leaf collects its gradient. The leaf and its gradient are kept. Returns false for a tensor that is not a leaf.
    pub fn set_requires_grad(&self, on: bool) -> bool {
        let leaf = self.0.autograd.as_ref().filter(|a| a.node.is_none());
        leaf.is_some_and(|a| {
            a.frozen.store(!on, Ordering::Relaxed);
            true
        })
    }
    /// Returns whether an op recorded this tensor on the tape.
    pub fn is_made(&self) -> bool {
        self.0.autograd.as_ref().is_some_and(|a| a.node.is_some())
    }
    /// Returns the name given to [`Tensor::parameter`].
    pub fn name(&self) -> Option<&str> {
        self.0.autograd.as_ref().and_then(|a| a.name.as_deref())
    }
    /// Computes the gradients of this scalar with respect to all leaves that it depends on, and adds them to the leaves' gradients.
    ///
    /// # Errors
    /// `Shape` if the tensor has more than one element ([`Tensor::backward_with`] takes a gradient for those).
    pub fn backward(&self) -> Result<()> {
        if self.count() != 1 {
            return Err(Error::shape(format!(
                "backward: the tensor has shape {}, expected one element; sum it, or give its gradient to backward_with",
                self.shape()
            )));
        }
        self.backward_with(&Self::ones(self.device(), self.shape(), self.dtype())?)
    }

    /// Like [`Tensor::backward`], for a tensor of any shape whose gradient is `dy`.
    pub fn backward_with(&self, dy: &Self) -> Result<()> {
        if dy.shape() != self.shape() {
            return Err(Error::shape(format!(
                "backward: dy has shape {}, expected {}",
                dy.shape(),
                self.shape()
            )));
        }
        if !self.requires_grad() {
            return Err(Error::unsupported(
                "backward: this tensor does not depend on anything that needs a gradient",
            ));
        }
        settle()?;
        eagerly(|| no_grad(|| walk(&[(self, dy)], &mut Wanted::default())))
    }
}

/// Like [`Tensor::backward_with`], for several tensors, which may be results of one op.
pub(crate) fn backward_all(from: &[(&Tensor, &Tensor)]) -> Result<()> {
    settle()?;
    eagerly(|| no_grad(|| walk(from, &mut Wanted::default())))
}

/// Pending gradients: by node and result, each with its tensor.
#[derive(Default)]
struct Waiting {
    open: BTreeMap<u64, Arc<TapeNode>>,
    grads: HashMap<(u64, usize), (Tensor, Tensor)>,
    shared: Shared,
}

fn walk(from: &[(&Tensor, &Tensor)], wanted: &mut Wanted) -> Result<()> {
    let mut waiting = Waiting::default();
    from.iter().try_for_each(|(tensor, dy)| waiting.arrive(tensor, (*dy).clone()))?;
    while let Some((number, node)) = waiting.open.pop_last() {
        let dys = waiting.taken(number, node.done()?.results.len(), wanted)?;
        let body = node.body.lock().unwrap_or_else(PoisonError::into_inner).take();
        let body = body.ok_or_else(|| {
            Error::unsupported(format!(
                "backward: {} was already used by a backward, which freed its saved tensors; run the forward again",
                node.op
            ))
        })?;
        let (inputs, found) = node.gradients(body, &dys)?;
        if checks_result(found.iter().flatten().next()) {
            let dys: Vec<&Tensor> = dys.iter().flatten().collect();
            let place = ("backward", node.op, node.layer);
            found.iter().flatten().try_for_each(|grad| check_finite(place, grad, &dys))?;
        }
        // A leaf takes a gradient without a copy if it is the only owner.
        drop(dys);
        for (input, grad) in inputs.iter().zip(found) {
            let Some(grad) = grad.filter(|_| input.requires_grad()) else { continue };
            if grad.shape() != input.shape() {
                return Err(Error::internal(format!(
                    "backward of {}: a gradient has shape {}, expected {}, the shape of its input",
                    node.op,
                    grad.shape(),
                    input.shape()
                )));
            }
            waiting.arrive(input, grad)?;
        }
    }
    waiting.shared.settle()
}

impl TapeNode {
    /// Runs the backward. Returns the inputs and their gradients.
    fn gradients(&self, body: Body, dys: &[Option<Tensor>]) -> Result<(Vec<Tensor>, Vec<Option<Tensor>>)> {
        let Body { inputs, backward, mut saved } = body;
        saved.replaced_by(inputs.len(), dys.iter().flatten());
        let run = || {
            within(self, &inputs, || {
                let whole = inputs.iter().map(Tensor::whole_again).collect::<Result<Vec<_>>>()?;
                backward(&whole, dys)
            })
        };
        let found = saved.hold(run, |i| self.overwritten(&inputs, i))?;
        Ok((inputs, found))
    }

    /// Describes input or result `i`, with one index for both, as the start of an error message.
    fn overwritten(&self, inputs: &[Tensor], i: usize) -> String {
        let layer = if self.layer == 0 { String::new() } else { format!(" in layer {}", self.layer) };
        let results = self.done.get().map_or(&[][..], |done| &done.results);
        let tensor = match (inputs.get(i), i.checked_sub(inputs.len()).and_then(|i| results.get(i))) {
            (Some(input), _) => {
                described(&format!("input {i}"), input.name(), &(input.shape().clone(), input.dtype()))
            }
            (None, Some(form)) if results.len() == 1 => described("its result", None, form),
            (None, Some(form)) => described(&format!("its result {}", i - inputs.len()), None, form),
            (None, None) => "a tensor".into(),
        };
        format!("backward of {}{layer}: {tensor}", self.op)
    }
}

/// Runs a node's backward with the layer and the op of the node.
fn within<R>(node: &TapeNode, inputs: &[Tensor], f: impl FnOnce() -> R) -> R {
    let _restore = Restore(&LAYER, LAYER.replace(node.layer));
    match inputs.first() {
        Some(x) => x.device().within((node.layer, node.op), f),
        None => f(),
    }
}

impl Waiting {
    /// Removes and returns the gradients of a node's results.
    fn taken(&mut self, number: u64, results: usize, wanted: &mut Wanted) -> Result<Vec<Option<Tensor>>> {
        let mut take = |slot: usize| match self.grads.remove(&(number, slot)) {
            Some((owner, dy)) => {
                let dy = owner.hooked(dy)?;
                wanted.see((number, slot), &dy)?;
                keep(&owner, dy).map(Some)
            }
            None => Ok(None),
        };
        (0..results).map(&mut take).collect()
    }

    /// Processes a gradient of `tensor`: leaves collect it, others wait until the backward reaches them.
    fn arrive(&mut self, tensor: &Tensor, grad: Tensor) -> Result<()> {
        let Some(autograd) = &tensor.0.autograd else { return Ok(()) };
        let Some(node) = &autograd.node else { return self.shared.arrive(tensor, grad) };
        let number = node.done()?.number;
        let at = (number, autograd.slot);
        let sum = match self.grads.remove(&at) {
            Some((_, before)) => before.add(&grad)?,
            None => grad,
        };
        self.grads.insert(at, (tensor.clone(), sum));
        self.open.entry(number).or_insert_with(|| Arc::clone(node));
        Ok(())
    }
}
