//! Deferred ops that are fused into one kernel: [`lazy`].
//!
//! Within a scope, an op that can be a tree node ([`Term`]) allocates its result and extends the tree. The tree is computed, and recorded
//! on the tape as one op, at these points: before a command of the thread uses a result or overwrites an input of the tree, when a backward
//! begins, when the tree is large, and at the end of the scope. Results that are no longer referenced by then are never stored. A product
//! is deferred too, and the elementwise ops after it become its epilogue.
//!
//! A result is an ordinary tensor whose memory is promised (`netcl_device::device::deferred`); an unfulfilled promise is an error. The
//! number and the gradient of the tree's node are known after the tree has run. An algorithm without epilogues gets a separate kernel for
//! the ops after its product. Recording a step opens a scope by itself (`Lazy::of_capture`); in that scope, reductions and ops that need
//! gradients run as called.

mod compute;
mod epilogue;
mod group;
mod images;
mod term;
#[cfg(test)]
mod tests;

use crate::tape::{self, Scope, Term};
use crate::{Error, Result, Tensor};
use group::Group;
use netcl_device::Buffer;
use netcl_device::deferred::{Deferred, defer_by};
use netcl_device::driver::Access;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::rc::Rc;

/// Runs `f` and fuses its ops on this thread, forward and backward. Elementwise ops, comparisons, selections, conversions between floats,
/// reductions over the last axes and softmax are deferred and become common kernels. Ops after [`linear`](crate::ops::matmul::linear) or a
/// product with a matrix become part of the product's kernel, if it supports expressions.
///
/// Ops are called as usual, and their errors are reported at the call. A result is computed when something uses it: an op that is not a
/// tree node, a view, the host, a backward, or the end of the scope. Results that are dropped before that are never stored, which saves the
/// time. Results that are kept are additional results of the same kernel. A nested scope is part of the outer scope.
///
/// Differences from the same ops outside of a scope: values between nodes are f32 and not rounded to the storage type, so results agree
/// within rounding. They are the same in every run. Device errors are reported by the op that needed the result. The backward recomputes
/// the tree's values from the tree's inputs.
///
/// ```
/// use netcl_tensor::{DType, Device, Settings, Tensor, lazy};
/// # fn main() -> netcl_tensor::Result<()> {
/// let device = Device::open("sim", &Settings::default())?;
/// let x = Tensor::from_f32(&device, [2, 2], &[0.0, 1.0, 2.0, 3.0], DType::F32)?;
/// // Launches one kernel instead of three.
/// let y = lazy(|| x.add_scalar(1.0)?.square()?.mul(&x))?;
/// assert_eq!(y.to_vec()?, [0.0, 4.0, 18.0, 48.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Errors of `f`, and device errors while the rest is computed.
pub fn lazy<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    scoped(Lazy::start(), f).map(|(out, _)| out)
}

/// Like [`lazy`]. Also returns every tree with the kernels that computed it, as text.
///
/// # Errors
/// Errors of [`lazy`].
pub fn explain_lazy<R>(f: impl FnOnce() -> Result<R>) -> Result<(R, String)> {
    scoped(Lazy::start_explained(), f).map(|(out, shown)| (out, shown.join("\n")))
}

fn scoped<R>(scope: Lazy, f: impl FnOnce() -> Result<R>) -> Result<(R, Vec<String>)> {
    let out = f();
    // Deferred results of the closure are computed even if it fails.
    let finished = scope.ended();
    Ok((out?, finished?))
}

/// Runs `f`, in which captured graphs do not fuse ops. Use it if some steps run eagerly and some are replayed, and all must have the same
/// bits. Explicit [`lazy`] scopes within `f` stay lazy.
pub fn unfused<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            UNFUSED.set(self.0);
        }
    }
    let _restore = Restore(UNFUSED.replace(true));
    f()
}

/// A lazy scope of this thread, for callers without a closure: from [`Lazy::start`] to [`Lazy::finish`]. If it is dropped before, for
/// example after an error, pending results are not computed and can no longer be used.
pub struct Lazy {
    /// `None` within another scope.
    own: Option<ReplacedState>,
    /// Error from computing the ops that were pending before.
    failed: Option<Error>,
    /// Makes the scope specific to its thread.
    _thread: PhantomData<*const ()>,
}

/// State that a scope replaced.
struct ReplacedState {
    waiting: Rc<Waiting>,
    around: Option<Rc<Waiting>>,
    scope: Option<Rc<dyn Scope>>,
    deferred: Option<Rc<dyn Deferred>>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Waiting>>> = const { RefCell::new(None) };
    static UNFUSED: Cell<bool> = const { Cell::new(false) };
}

impl Lazy {
    /// Starts deferring ops of this thread.
    #[must_use]
    pub fn start() -> Self {
        Self::of(Waiting::default())
    }

    /// Like [`Self::start`], for a scope that reports its trees and kernels at the end: [`explained`](Self::explained).
    #[must_use]
    pub fn start_explained() -> Self {
        let scope = Self::start();
        if let Some(own) = &scope.own {
            own.waiting.explain.set(true);
        }
        scope
    }

    /// Computes the deferred ops of this thread, so that another thread can read the results.
    ///
    /// # Errors
    /// Device errors.
    pub fn settle() -> Result<()> {
        tape::settle()
    }

    /// Starts the scope of a captured step. Ops that need gradients, and reductions, run as called. Compared with an eager step, only
    /// roundings between elementwise ops differ. Without `fuse`, within [`unfused`], or in another scope, it has no effect.
    pub(crate) fn of_capture(fuse: bool) -> Self {
        match fuse && !UNFUSED.get() {
            true => Self::of(Waiting { captured: true, ..Waiting::default() }),
            false => Self { own: None, failed: None, _thread: PhantomData },
        }
    }

    /// Starts a scope that computes small trees on the host in f64, for values that are computed once.
    pub(crate) fn on_host() -> Self {
        Self::of(Waiting { host: true, ..Waiting::default() })
    }

    fn of(waiting: Waiting) -> Self {
        let around = CURRENT.with_borrow(Clone::clone);
        // An explicit scope behaves the same inside and outside of a captured step.
        if around.as_ref().is_some_and(|around| waiting.captured || !around.captured) {
            return Self { own: None, failed: None, _thread: PhantomData };
        }
        let failed = around.as_ref().and_then(|around| around.settle().err());
        let waiting = Rc::new(waiting);
        CURRENT.set(Some(Rc::clone(&waiting)));
        let scope = tape::in_scope(Some(Rc::clone(&waiting) as Rc<dyn Scope>));
        let deferred = defer_by(Some(Rc::clone(&waiting) as Rc<dyn Deferred>));
        Self { own: Some(ReplacedState { waiting, around, scope, deferred }), failed, _thread: PhantomData }
    }

    /// Computes the deferred ops and ends the scope. A nested scope only ends; the outer scope computes its ops.
    ///
    /// # Errors
    /// Device errors.
    pub fn finish(self) -> Result<()> {
        self.ended().map(drop)
    }

    /// Like [`finish`](Self::finish). Also returns every tree with the kernels that computed it, as text. The text is empty for a nested
    /// scope, and for a scope that was not started with [`start_explained`](Self::start_explained).
    ///
    /// # Errors
    /// Errors of [`finish`](Self::finish).
    pub fn explained(self) -> Result<String> {
        self.ended().map(|shown| shown.join("\n"))
    }

    fn ended(mut self) -> Result<Vec<String>> {
        let Some(before) = self.own.as_ref() else { return Ok(Vec::new()) };
        let waiting = Rc::clone(&before.waiting);
        let settled = waiting.settle();
        self.end();
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        settled.map(|()| waiting.shown.take())
    }

    fn end(&mut self) {
        let Some(before) = self.own.take() else { return };
        tape::in_scope(before.scope);
        defer_by(before.deferred);
        CURRENT.set(before.around);
    }
}

impl Drop for Lazy {
    fn drop(&mut self) {
        self.end();
    }
}

/// The deferred ops of a scope.
#[derive(Default)]
struct Waiting {
    open: RefCell<Option<Group>>,
    /// See [`Lazy::of_capture`].
    captured: bool,
    /// See [`Lazy::on_host`].
    host: bool,
    explain: Cell<bool>,
    shown: RefCell<Vec<String>>,
}

impl Waiting {
    fn settle(&self) -> Result<()> {
        let group = self.open.borrow_mut().take();
        let Some(group) = group else { return Ok(()) };
        let text =
            tape::eagerly(|| tape::no_grad(|| compute::compute(group, self.explain.get(), self.host)))?;
        self.shown.borrow_mut().extend(text);
        Ok(())
    }
}

impl Scope for Waiting {
    fn defer(&self, op: &'static str, term: Term, inputs: &[&Tensor]) -> Result<Option<Tensor>> {
        let Some(first) = inputs.first() else { return Ok(None) };
        if self.captured && (tape::records(inputs) || !term.is_elementwise() && !term.is_product()) {
            return Ok(None);
        }
        if self.open.borrow().as_ref().is_some_and(|group| !group.takes(first.device(), &term, inputs)) {
            self.settle()?;
        }
        let mut open = self.open.borrow_mut();
        open.get_or_insert_with(|| Group::new(first.device(), &term, inputs)).add(op, &term, inputs).map(Some)
    }
    fn settle(&self) -> Result<()> {
        Self::settle(self)
    }
}

impl Deferred for Waiting {
    fn before(&self, buffer: &Buffer, access: Access) -> Result<()> {
        match self.open.try_borrow().is_ok_and(|open| open.as_ref().is_some_and(|g| g.meets(buffer, access)))
        {
            true => self.settle(),
            false => Ok(()),
        }
    }
    fn all(&self) -> Result<()> {
        self.settle()
    }
}
