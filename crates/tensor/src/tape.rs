//! The tape: which op made a tensor, and the walk back from a loss.
//!
//! Recording is implicit, as in PyTorch: an op whose inputs need gradients leaves a node. Nodes carry increasing numbers, so
//! walking them from the highest down visits every consumer of a tensor before its producer. What a node saved is
//! freed as the walk passes it.

use crate::{DType, Error, Result, Tensor};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

type Backward = Box<dyn FnOnce(&[Tensor], &Tensor) -> Result<Vec<Option<Tensor>>> + Send>;

/// A tensor's place on the tape.
pub(crate) struct Autograd {
    node: Option<Arc<Node>>,
    name: Option<Arc<str>>,
    grad: Mutex<Option<Tensor>>,
    retain: AtomicBool,
}

struct Node {
    number: u64,
    op: &'static str,
    /// The layer of the model that was at work: see [`layer`].
    layer: u32,
    body: Mutex<Option<Body>>,
}

struct Body {
    inputs: Vec<Tensor>,
    backward: Backward,
}

/// Long chains are taken apart one node at a time: dropping them recursively would exhaust the stack.
impl Drop for Node {
    fn drop(&mut self) {
        let mut open: Vec<Tensor> = Vec::new();
        let take = |node: &Self| node.body.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(body) = take(self) {
            open.extend(body.inputs);
        }
        while let Some(tensor) = open.pop() {
            let Some(inner) = Arc::into_inner(tensor.0) else { continue };
            let Some(node) = inner.autograd.and_then(|a| a.node) else { continue };
            if Arc::strong_count(&node) == 1
                && let Some(body) = take(&node)
            {
                open.extend(body.inputs);
            }
        }
    }
}

thread_local! {
    static RECORDING: Cell<bool> = const { Cell::new(true) };
    static ANOMALY: Cell<bool> = const { Cell::new(false) };
    static LAYER: Cell<u32> = const { Cell::new(0) };
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

/// Runs `f` with every op's result checked on this thread: the first NaN or infinity is an error that names op and tensor.
/// Each check waits for the device.
pub fn detect_anomaly<R>(on: bool, f: impl FnOnce() -> R) -> R {
    let _restore = Restore(&ANOMALY, ANOMALY.replace(on));
    f()
}

/// Runs `f` as layer `number` of a model, counted from 1, on this thread. Those who explain where memory goes ask for it.
pub fn layer<R>(number: u32, f: impl FnOnce() -> R) -> R {
    let _restore = Restore(&LAYER, LAYER.replace(number));
    f()
}

/// The layer at work on this thread; 0 for none.
pub(crate) fn current_layer() -> u32 {
    LAYER.get()
}

/// Whether [`detect_anomaly`] is on: inputs must then be what they were when an op's result is looked at.
pub(crate) fn detects_anomaly() -> bool {
    ANOMALY.get()
}

static NUMBER: AtomicU64 = AtomicU64::new(1);

/// Puts the result of `op` on the tape, if any input needs a gradient.
pub(crate) fn record(
    op: &'static str,
    inputs: &[&Tensor],
    y: Tensor,
    backward: impl FnOnce(&[Tensor], &Tensor) -> Result<Vec<Option<Tensor>>> + Send + 'static,
) -> Result<Tensor> {
    if ANOMALY.get() {
        check_finite("forward", op, &y, inputs)?;
    }
    if !RECORDING.get() || !inputs.iter().any(|t| t.requires_grad()) {
        return Ok(y);
    }
    let body = Body { inputs: inputs.iter().map(|t| (*t).clone()).collect(), backward: Box::new(backward) };
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let node = Node { number, op, layer: LAYER.get(), body: Mutex::new(Some(body)) };
    let autograd = Autograd {
        node: Some(Arc::new(node)),
        name: None,
        grad: Mutex::new(None),
        retain: AtomicBool::new(false),
    };
    Ok(Tensor::from_parts(y.storage().clone(), y.layout().clone(), y.dtype(), Some(autograd)))
}

fn check_finite(pass: &str, op: &str, y: &Tensor, inputs: &[&Tensor]) -> Result<()> {
    // The checks are made of ops themselves, which are not to be checked.
    let _restore = Restore(&ANOMALY, ANOMALY.replace(false));
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
        "anomaly: the {pass} of {op} made a NaN or infinity in a tensor of shape {} ({}): {}. Usual causes: a learning rate too \
         high, f16 without loss scaling, a logarithm or root of a negative number",
        y.shape(),
        y.dtype(),
        from.join(", ")
    )))
}

impl Tensor {
    /// A leaf that collects its gradient in [`Tensor::grad`], sharing this tensor's storage. `name` appears in errors.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Self {
        let autograd = Autograd {
            node: None,
            name: Some(name.into()),
            grad: Mutex::new(None),
            retain: AtomicBool::new(true),
        };
        Self::from_parts(self.storage().clone(), self.layout().clone(), self.dtype(), Some(autograd))
    }
    /// Whether a gradient can flow here.
    pub fn requires_grad(&self) -> bool {
        self.0.autograd.is_some()
    }
    /// Whether an op left this on the tape.
    pub(crate) fn is_made(&self) -> bool {
        self.0.autograd.as_ref().is_some_and(|a| a.node.is_some())
    }
    /// The name given to [`Tensor::parameter`].
    pub fn name(&self) -> Option<&str> {
        self.0.autograd.as_ref().and_then(|a| a.name.as_deref())
    }
    /// Asks that the gradient of a tensor that is no leaf be kept too.
    pub fn retain_grad(&self) {
        if let Some(a) = &self.0.autograd {
            a.retain.store(true, Ordering::Relaxed);
        }
    }
    /// The gradient collected so far.
    pub fn grad(&self) -> Option<Self> {
        self.0.autograd.as_ref().and_then(|a| a.grad.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
    /// Replaces or, with `None`, forgets the gradient.
    pub fn set_grad(&self, grad: Option<Self>) {
        if let Some(a) = &self.0.autograd {
            *a.grad.lock().unwrap_or_else(PoisonError::into_inner) = grad;
        }
    }

    /// Gradients of this scalar with respect to every leaf it depends on, added to what they have collected.
    ///
    /// # Errors
    /// `Shape` when the tensor has more than one element ([`Tensor::backward_with`] takes a gradient for those).
    pub fn backward(&self) -> Result<()> {
        if self.count() != 1 {
            return Err(Error::shape(format!(
                "backward: the tensor has shape {}, expected one element; sum it, or give its gradient to backward_with",
                self.shape()
            )));
        }
        self.backward_with(&Self::ones(self.device(), self.shape(), self.dtype())?)
    }

    /// The same for a tensor of any shape whose own gradient is `dy`.
    pub fn backward_with(&self, dy: &Self) -> Result<()> {
        if dy.shape() != self.shape() {
            return Err(Error::shape(format!(
                "backward: dy has shape {}, expected {}",
                dy.shape(),
                self.shape()
            )));
        }
        if !self.requires_grad() {
            return Err(Error::unsupported("backward: nothing this tensor was made from needs a gradient"));
        }
        no_grad(|| walk(self, dy))
    }
}

fn walk(from: &Tensor, dy: &Tensor) -> Result<()> {
    let mut open: BTreeMap<u64, (Arc<Node>, Tensor)> = BTreeMap::new();
    let mut grads: HashMap<u64, Tensor> = HashMap::new();
    arrive(from, dy.clone(), &mut open, &mut grads)?;
    while let Some((number, (node, owner))) = open.pop_last() {
        let Some(dy) = grads.remove(&number) else { continue };
        keep(&owner, &dy)?;
        let body = node.body.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Body { inputs, backward } = body.ok_or_else(|| {
            Error::unsupported(format!(
                "backward: {} was already walked and what it saved is freed; run the forward again",
                node.op
            ))
        })?;
        let found = dy.device().within((node.layer, node.op), || backward(&inputs, &dy))?;
        for (input, grad) in inputs.iter().zip(found) {
            let Some(grad) = grad.filter(|_| input.requires_grad()) else { continue };
            if ANOMALY.get() {
                check_finite("backward", node.op, &grad, &[&dy])?;
            }
            if grad.shape() != input.shape() {
                return Err(Error::internal(format!(
                    "backward of {}: a gradient of shape {} for an input of shape {}",
                    node.op,
                    grad.shape(),
                    input.shape()
                )));
            }
            arrive(input, grad, &mut open, &mut grads)?;
        }
    }
    Ok(())
}

/// A gradient reaches `tensor`: leaves keep it, others wait for their turn in the walk.
fn arrive(
    tensor: &Tensor,
    grad: Tensor,
    open: &mut BTreeMap<u64, (Arc<Node>, Tensor)>,
    grads: &mut HashMap<u64, Tensor>,
) -> Result<()> {
    let Some(autograd) = &tensor.0.autograd else { return Ok(()) };
    let Some(node) = &autograd.node else { return keep(tensor, &grad) };
    let sum = match grads.remove(&node.number) {
        Some(before) => before.add(&grad)?,
        None => grad,
    };
    grads.insert(node.number, sum);
    open.entry(node.number).or_insert_with(|| (Arc::clone(node), tensor.clone()));
    Ok(())
}

/// Adds to the collected gradient of a leaf or a tensor that was asked to retain it.
fn keep(tensor: &Tensor, grad: &Tensor) -> Result<()> {
    let Some(autograd) = &tensor.0.autograd else { return Ok(()) };
    if !autograd.retain.load(Ordering::Relaxed) {
        return Ok(());
    }
    let before = tensor.grad();
    let sum = match before {
        Some(before) => before.add(grad)?,
        None => grad.clone(),
    };
    debug_assert!(sum.dtype() == tensor.dtype() || sum.dtype() == DType::F32);
    tensor.set_grad(Some(sum));
    Ok(())
}
