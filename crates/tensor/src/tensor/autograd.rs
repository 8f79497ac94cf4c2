//! A tensor's place on the tape, as data. [`crate::tape`] records ops and runs the backward.

use super::Tensor;
use super::saved::{SavedVersions, ShapeAndType};
use crate::{Error, Result};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Computes the gradients of the inputs from those of the results. An unused result does not have a gradient.
pub(crate) type BackwardFn =
    Box<dyn FnOnce(&[Tensor], &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> + Send>;

/// Receives the gradient of a tensor in a backward. A gradient that it returns replaces it.
pub type Hook = Arc<dyn Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync>;

/// The hooks of a tensor, in the order of their registration.
#[derive(Clone, Default)]
pub(crate) struct Hooks(Arc<Mutex<NumberedHooks>>);

#[derive(Default)]
struct NumberedHooks {
    last: u64,
    all: Vec<(u64, Hook)>,
}

impl Hooks {
    fn with<R>(&self, f: impl FnOnce(&mut NumberedHooks) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
    /// Adds a hook and returns its number, which no other hook of the tensor has.
    pub fn add(&self, hook: Hook) -> u64 {
        self.with(|hooks| {
            hooks.last += 1;
            hooks.all.push((hooks.last, hook));
            hooks.last
        })
    }
    /// Removes the hook with this number.
    pub fn remove(&self, number: u64) {
        self.with(|hooks| hooks.all.retain(|(other, _)| *other != number));
    }
    /// Returns all hooks.
    pub fn all(&self) -> Vec<Hook> {
        self.with(|hooks| hooks.all.iter().map(|(_, hook)| Arc::clone(hook)).collect())
    }
}

/// A tensor's place on the tape: the node of the op that created it, and the index of the result.
pub(crate) struct Autograd {
    pub node: Option<Arc<TapeNode>>,
    pub slot: usize,
    pub name: Option<Arc<str>>,
    pub grad: Mutex<Option<Tensor>>,
    pub retain: AtomicBool,
    /// Recomputes the tensor, if the tape does not keep it.
    pub again: Option<Again>,
    /// Whether its memory was released, so that only [`Again`] is left.
    pub given_up: bool,
    /// Whether it only has a name and does not collect a gradient. A leaf can change this.
    pub frozen: AtomicBool,
    /// Functions that a backward calls with its gradient.
    pub hooks: Hooks,
}

/// Op on the tape.
pub(crate) struct TapeNode {
    pub op: &'static str,
    /// Layer of the model in which it ran: see [`crate::tape::layer`].
    pub layer: u32,
    /// Data that is known after the op has run. A deferred op has results before that.
    pub done: OnceLock<CompletedOp>,
    pub body: Mutex<Option<Body>>,
}

/// Data of an op that has run.
pub(crate) struct CompletedOp {
    pub number: u64,
    /// The op's results.
    pub results: Vec<ShapeAndType>,
}

impl TapeNode {
    /// Returns the data of an op that has run.
    ///
    /// # Errors
    /// `Internal` if it has not run.
    pub fn done(&self) -> Result<&CompletedOp> {
        let why = || Error::internal(format!("backward: {} was deferred and has not run", self.op));
        self.done.get().ok_or_else(why)
    }
}

/// State that a node keeps until the backward has used it.
pub(crate) struct Body {
    pub inputs: Vec<Tensor>,
    pub backward: BackwardFn,
    /// Versions of inputs and results at the end of the forward.
    pub saved: SavedVersions,
}

/// Drops long chains one node at a time: recursive dropping would exhaust the stack.
impl Drop for TapeNode {
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

/// Recomputes a tensor.
pub(crate) type Again = Arc<dyn Fn() -> Result<Tensor> + Send + Sync>;
