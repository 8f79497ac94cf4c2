//! A tensor's place on the tape, as data: [`crate::tape`] records ops and walks back.

use super::Tensor;
use super::saved::{Form, Saved};
use crate::{Error, Result};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Gradients of the inputs from those of the results; a result that nothing was made of has none.
pub(crate) type Backward =
    Box<dyn FnOnce(&[Tensor], &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> + Send>;

/// A tensor's place on the tape: the node of the op that made it, and which of the op's results it is.
pub(crate) struct Autograd {
    pub node: Option<Arc<Node>>,
    pub slot: usize,
    pub name: Option<Arc<str>>,
    pub grad: Mutex<Option<Tensor>>,
    pub retain: AtomicBool,
    /// How to make the tensor again, where the tape is not to keep it.
    pub again: Option<Again>,
    /// Whether its memory was given up, and [`Again`] is all there is.
    pub given_up: bool,
    /// Whether it has a name only, and takes no gradient.
    pub frozen: bool,
}

/// An op on the tape.
pub(crate) struct Node {
    pub op: &'static str,
    /// The layer of the model that was at work: see [`crate::tape::layer`].
    pub layer: u32,
    /// What is known once the op has run: a lazy one's results are there before that.
    pub done: OnceLock<Done>,
    pub body: Mutex<Option<Body>>,
}

/// An op that has run.
pub(crate) struct Done {
    pub number: u64,
    /// The op's results.
    pub results: Vec<Form>,
}

impl Node {
    /// Its number.
    ///
    /// # Errors
    /// `Internal` before it has run.
    pub fn done(&self) -> Result<&Done> {
        let why = || Error::internal(format!("backward: {} was deferred and did not run", self.op));
        self.done.get().ok_or_else(why)
    }
}

/// What a node keeps until the walk passes it.
pub(crate) struct Body {
    pub inputs: Vec<Tensor>,
    pub backward: Backward,
    /// What inputs and results were when the forward was done.
    pub saved: Saved,
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

/// How to compute a tensor again.
pub(crate) type Again = Arc<dyn Fn() -> Result<Tensor> + Send + Sync>;
