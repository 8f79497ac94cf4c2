//! Deferred ops: their description, and the scope that defers them on a thread. [`crate::lazy`] turns them into trees.

use super::{Restore, TapeNode, fill, made_by, open_node};
use crate::tensor::saved::{SavedVersions, ShapeAndType};
use crate::{DType, Result, Tensor};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// An op as a tree node. Names are those in the tables of elementwise ops. Axes count from the first one.
#[derive(Clone, Debug, PartialEq)]
pub enum Term {
    /// An elementwise op of one tensor, with its scalars.
    Unary(&'static str, Vec<f32>),
    /// An elementwise op of two tensors.
    Binary(&'static str),
    /// A comparison, by its index.
    Compare(usize),
    /// A selection by a mask between two tensors.
    Where,
    /// The value where the second tensor is set, and the first tensor elsewhere.
    MaskedFill(f32),
    /// A conversion to another floating-point storage type.
    Cast(DType),
    /// Sum or mean over axes.
    Sum {
        /// The last axes, in order.
        axes: Vec<usize>,
        /// Whether they remain with size 1.
        keep: bool,
        /// Whether the sum is divided by the number of terms.
        mean: bool,
        /// Storage type of the result.
        dtype: DType,
    },
    /// Maximum over axes.
    Max {
        /// The last axes, in order.
        axes: Vec<usize>,
        /// Whether they remain with size 1.
        keep: bool,
    },
    /// Softmax over the last axis.
    Softmax,
    /// Log-softmax over the last axis.
    LogSoftmax,
    /// Product of x `(.., K)` and w `(K, N)`, plus a bias `(N)` as an optional third input. Trees can continue from its value.
    Product,
    /// Convolution of x `(N, G C, H, W)` with w `(G O, C, I, J)`, and a third input. Trees can continue from its value, an image with
    /// adjacent channels.
    Convolution {
        /// Stride along both axes.
        stride: [usize; 2],
        /// Zeros before and after the image, along both axes.
        padding: [usize; 2],
        /// Distance between taps, along both axes.
        dilation: [usize; 2],
        /// Number of groups G.
        groups: usize,
        /// Whether the third input is a bias `(G O)`.
        bias: bool,
    },
}

impl Term {
    /// Returns whether the op is elementwise.
    pub(crate) fn is_elementwise(&self) -> bool {
        use Term::{Binary, Cast, Compare, MaskedFill, Unary, Where};
        matches!(self, Unary(..) | Binary(_) | Compare(_) | Where | MaskedFill(_) | Cast(_))
    }
    /// Returns whether trees can continue from its value.
    pub(crate) fn is_product(&self) -> bool {
        matches!(self, Self::Product | Self::Convolution { .. })
    }
}

/// A scope that defers ops.
pub(crate) trait Scope {
    /// Returns the result of a deferred op, or `None` for an op that must run now.
    fn defer(&self, op: &'static str, term: Term, inputs: &[&Tensor]) -> Result<Option<Tensor>>;
    /// Computes all deferred ops.
    fn settle(&self) -> Result<()>;
}

thread_local! {
    static SCOPE: RefCell<Option<Rc<dyn Scope>>> = const { RefCell::new(None) };
    static EAGER: Cell<bool> = const { Cell::new(false) };
}

/// Sets the scope that defers ops on this thread. Returns the previous one.
pub(crate) fn in_scope(scope: Option<Rc<dyn Scope>>) -> Option<Rc<dyn Scope>> {
    SCOPE.replace(scope)
}

/// Runs `f` without deferring its ops. Used inside of ops and backwards.
pub(crate) fn eagerly<R>(f: impl FnOnce() -> R) -> R {
    let _restore = Restore(&EAGER, EAGER.replace(true));
    f()
}

/// Returns the result of an op if a scope defers it. `term` is only called then; it checks the inputs, and returns `None` for ops that are
/// not tree nodes.
pub(crate) fn defer(
    op: &'static str,
    inputs: &[&Tensor],
    term: &dyn Fn() -> Result<Option<Term>>,
) -> Result<Option<Tensor>> {
    // Checks of each op's result need the result at once.
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

/// Computes the deferred ops of this thread.
pub(crate) fn settle() -> Result<()> {
    SCOPE.with_borrow(Clone::clone).map_or(Ok(()), |scope| scope.settle())
}

/// The place on the tape of deferred ops that become one op.
pub(crate) struct DeferredNode {
    node: Arc<TapeNode>,
    results: Vec<ShapeAndType>,
}

impl DeferredNode {
    /// Creates a place for an op with this name in the current layer.
    pub fn new(op: &'static str) -> Self {
        Self { node: Arc::new(open_node(op)), results: Vec::new() }
    }
    /// Returns `y` as the next result, and its index.
    pub fn result(&mut self, y: &Tensor) -> (Tensor, usize) {
        let slot = self.results.len();
        self.results.push((y.shape().clone(), y.dtype()));
        (made_by(&self.node, slot, y), slot)
    }
    /// Returns the index of `x` among the results.
    pub fn slot_of(&self, x: &Tensor) -> Option<usize> {
        let autograd = x.0.autograd.as_ref()?;
        autograd.node.as_ref().is_some_and(|node| Arc::ptr_eq(node, &self.node)).then_some(autograd.slot)
    }
    /// Completes the op after it has run. The backward may read the inputs, but not the results.
    pub fn done(
        self,
        inputs: &[&Tensor],
        backward: impl FnOnce(&[Tensor], &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> + Send + 'static,
    ) -> Result<()> {
        let saved = SavedVersions::now(inputs.iter().copied());
        fill(&self.node, inputs, (self.results, saved), Box::new(backward))
    }
}
