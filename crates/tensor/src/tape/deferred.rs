//! Deferred ops: what they say of themselves, and who defers them on a thread. [`crate::lazy`] makes trees of them.

use super::{Node, Restore, fill, made_by, open_node};
use crate::tensor::saved::{Form, Saved};
use crate::{DType, Result, Tensor};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// An op as a node of a tree. Names are those of the tables of element-wise ops; axes count from the first one.
#[derive(Clone, Debug, PartialEq)]
pub enum Term {
    /// A row of one tensor, with its scalars.
    Unary(&'static str, Vec<f32>),
    /// A row of two.
    Binary(&'static str),
    /// A comparison by its number.
    Compare(usize),
    /// Of a mask and two tensors.
    Where,
    /// The value where the second tensor is set, else the first.
    MaskedFill(f32),
    /// In another floating storage type.
    Cast(DType),
    /// Sum or mean over axes, stored as a type.
    Sum {
        /// The last ones, in order.
        axes: Vec<usize>,
        /// Whether they stay as size 1.
        keep: bool,
        /// Divided by the number of terms.
        mean: bool,
        /// Storage of the result.
        dtype: DType,
    },
    /// Maximum over axes.
    Max {
        /// The last ones, in order.
        axes: Vec<usize>,
        /// Whether they stay as size 1.
        keep: bool,
    },
    /// Over the last axis.
    Softmax,
    /// Over the last axis.
    LogSoftmax,
    /// x `(.., K)` times w `(K, N)`, with a bias `(N)` where there is a third input: a value that trees go on from.
    Product,
    /// x `(N, G C, H, W)` and w `(G O, C, I, J)`, and a third input: another such value, of images whose channels are neighbours.
    Convolution {
        /// Along both axes, as the other two.
        stride: [usize; 2],
        /// Zeros before and behind the image.
        padding: [usize; 2],
        /// Between taps.
        dilation: [usize; 2],
        /// G.
        groups: usize,
        /// Whether the third input is a bias `(G O)`.
        bias: bool,
    },
}

impl Term {
    /// Whether it is of each element by itself.
    pub(crate) fn is_elementwise(&self) -> bool {
        use Term::{Binary, Cast, Compare, MaskedFill, Unary, Where};
        matches!(self, Unary(..) | Binary(_) | Compare(_) | Where | MaskedFill(_) | Cast(_))
    }
    /// Whether it is a value that trees go on from.
    pub(crate) fn is_product(&self) -> bool {
        matches!(self, Self::Product | Self::Convolution { .. })
    }
}

/// Who defers ops.
pub(crate) trait Scope {
    /// The result of an op that is deferred; `None` for one that is to run now.
    fn defer(&self, op: &'static str, term: Term, inputs: &[&Tensor]) -> Result<Option<Tensor>>;
    /// Runs all deferred ops.
    fn settle(&self) -> Result<()>;
}

thread_local! {
    static SCOPE: RefCell<Option<Rc<dyn Scope>>> = const { RefCell::new(None) };
    static EAGER: Cell<bool> = const { Cell::new(false) };
}

/// Who defers ops on this thread from now on; who did so before.
pub(crate) fn in_scope(scope: Option<Rc<dyn Scope>>) -> Option<Rc<dyn Scope>> {
    SCOPE.replace(scope)
}

/// Runs `f`, whose ops run at once: what an op or a backward is made of.
pub(crate) fn eagerly<R>(f: impl FnOnce() -> R) -> R {
    let _restore = Restore(&EAGER, EAGER.replace(true));
    f()
}

/// The result of an op, if somebody defers it. `term` is asked only then; it checks the inputs, and is `None` of ops that are no trees.
pub(crate) fn defer(
    op: &'static str,
    inputs: &[&Tensor],
    term: &dyn Fn() -> Result<Option<Term>>,
) -> Result<Option<Tensor>> {
    // A check of each op's result needs the result.
    let debug = |x: &&Tensor| x.device().debug().needs_each() || x.device().debug().shapes;
    if EAGER.get() || super::detects_anomaly() || inputs.first().is_some_and(debug) {
        return Ok(None);
    }
    let Some(scope) = SCOPE.with_borrow(Clone::clone) else { return Ok(None) };
    match term()? {
        Some(term) => scope.defer(op, term, inputs),
        None => Ok(None),
    }
}

/// Runs the deferred ops of this thread.
pub(crate) fn settle() -> Result<()> {
    SCOPE.with_borrow(Clone::clone).map_or(Ok(()), |scope| scope.settle())
}

/// The place on the tape of deferred ops that become one.
pub(crate) struct Later {
    node: Arc<Node>,
    results: Vec<Form>,
}

impl Later {
    /// For an op of this name, of the layer at work.
    pub fn new(op: &'static str) -> Self {
        Self { node: Arc::new(open_node(op)), results: Vec::new() }
    }
    /// `y` as its next result, and which one that is.
    pub fn result(&mut self, y: &Tensor) -> (Tensor, usize) {
        let slot = self.results.len();
        self.results.push((y.shape().clone(), y.dtype()));
        (made_by(&self.node, slot, y), slot)
    }
    /// Which of its results `x` is.
    pub fn slot_of(&self, x: &Tensor) -> Option<usize> {
        let autograd = x.0.autograd.as_ref()?;
        autograd.node.as_ref().is_some_and(|node| Arc::ptr_eq(node, &self.node)).then_some(autograd.slot)
    }
    /// The op has run. The backward may read the inputs, and not the results.
    pub fn done(
        self,
        inputs: &[&Tensor],
        backward: impl FnOnce(&[Tensor], &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> + Send + 'static,
    ) -> Result<()> {
        let saved = Saved::now(inputs.iter().copied());
        fill(&self.node, inputs, (self.results, saved), Box::new(backward))
    }
}
