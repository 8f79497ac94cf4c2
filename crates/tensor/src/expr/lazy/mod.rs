//! Ops that wait for others and become one kernel with them: [`lazy`].
//!
//! Within a scope an op that is a node of a tree ([`Term`]) allocates its result and grows the tree. The tree is computed, and put on the
//! tape as one op, before a command of the thread uses a result, or overwrites what the tree reads; when a backward begins; when it
//! is large; and at the end of the scope. Results that nobody has kept by then are never stored. A product waits too, and what
//! follows it element by element becomes its epilogue.

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

/// Runs `f`, in which element-wise ops, comparisons, choices, conversions between floats, reductions over the last axes and softmax wait
/// for others on this thread and become one kernel with them, forward and backward. What follows [`linear`](crate::ops::matmul::linear) or
/// the product with a matrix is part of the product's kernel, where that takes expressions.
///
/// Ops are called as ever and their errors come from them. A result is there when something uses it: an op that is no tree, a view, the
/// host, a backward, the end of the scope. Results that are dropped before that are never stored, which is where the time is saved; those
/// that are kept are further results of the same kernel. A scope within a scope is part of it.
///
/// Differences to the same ops without it: values between nodes are f32 and not rounded to the storage type; results agree within
/// rounding, and are the same for every run. Errors of the device come from the op that needed the result. The backward computes what
/// it needs of a tree's values again from what the tree read.
///
/// ```
/// use netcl_tensor::{DType, Device, Settings, Tensor, lazy};
/// # fn main() -> netcl_tensor::Result<()> {
/// let device = Device::open("sim", &Settings::default())?;
/// let x = Tensor::from_f32(&device, [2, 2], &[0.0, 1.0, 2.0, 3.0], DType::F32)?;
/// // One kernel, not three.
/// let y = lazy(|| x.add_scalar(1.0)?.square()?.mul(&x))?;
/// assert_eq!(y.to_vec()?, [0.0, 4.0, 18.0, 48.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of `f`; what the device says when the rest is computed.
pub fn lazy<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    scoped(Lazy::start(), f).map(|(out, _)| out)
}

/// [`lazy`] with what it made of the ops: every tree with the kernels that computed it, as text.
///
/// # Errors
/// As [`lazy`].
pub fn explain_lazy<R>(f: impl FnOnce() -> Result<R>) -> Result<(R, String)> {
    scoped(Lazy::start_explained(), f).map(|(out, shown)| (out, shown.join("\n")))
}

fn scoped<R>(scope: Lazy, f: impl FnOnce() -> Result<R>) -> Result<(R, Vec<String>)> {
    let out = f();
    // What the closure has left elsewhere is computed also where it fails.
    let finished = scope.ended();
    Ok((out?, finished?))
}

/// Runs `f`, in which captured graphs compute every op by itself: for steps of which some run as they are called and some are replayed, and
/// all are to have the same bits. [`lazy`] scopes that `f` asks for stay lazy.
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

/// A lazy scope of this thread for callers that have no closure: from [`Lazy::start`] to [`Lazy::finish`]. Dropped without that, as by
/// an error, it computes nothing more: what waits then can be used no more.
pub struct Lazy {
    /// None within another scope.
    own: Option<Before>,
    /// Why what waited before could not be computed.
    failed: Option<Error>,
    /// Belongs to the thread.
    _thread: PhantomData<*const ()>,
}

/// What a scope replaced.
struct Before {
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
    /// Ops of this thread wait from now on.
    #[must_use]
    pub fn start() -> Self {
        Self::of(Waiting::default())
    }

    /// The same, for a scope that tells at its end what it made of the ops: [`explained`](Self::explained).
    #[must_use]
    pub fn start_explained() -> Self {
        let scope = Self::start();
        if let Some(own) = &scope.own {
            own.waiting.explain.set(true);
        }
        scope
    }

    /// Computes what waits on this thread: for what another thread is to read.
    ///
    /// # Errors
    /// What the device says.
    pub fn settle() -> Result<()> {
        tape::settle()
    }

    /// The scope of a step that is captured: what gradients need runs as it is called, and so do reductions, so that of the bits of a step as
    /// it is called only roundings between element-wise ops are others. Without `fuse`, within [`unfused`] and in another scope it is none.
    pub(crate) fn of_capture(fuse: bool) -> Self {
        match fuse && !UNFUSED.get() {
            true => Self::of(Waiting { captured: true, ..Waiting::default() }),
            false => Self { own: None, failed: None, _thread: PhantomData },
        }
    }

    /// A scope whose trees of few elements are computed on the host, in f64: for what is computed once.
    pub(crate) fn on_host() -> Self {
        Self::of(Waiting { host: true, ..Waiting::default() })
    }

    fn of(waiting: Waiting) -> Self {
        let around = CURRENT.with_borrow(Clone::clone);
        // A scope that was asked for is the same one in a captured step as outside of it.
        if around.as_ref().is_some_and(|around| waiting.captured || !around.captured) {
            return Self { own: None, failed: None, _thread: PhantomData };
        }
        let failed = around.as_ref().and_then(|around| around.settle().err());
        let waiting = Rc::new(waiting);
        CURRENT.set(Some(Rc::clone(&waiting)));
        let scope = tape::in_scope(Some(Rc::clone(&waiting) as Rc<dyn Scope>));
        let deferred = defer_by(Some(Rc::clone(&waiting) as Rc<dyn Deferred>));
        Self { own: Some(Before { waiting, around, scope, deferred }), failed, _thread: PhantomData }
    }

    /// Computes what waits and ends the scope. Within another one it is part of that.
    ///
    /// # Errors
    /// What the device says.
    pub fn finish(self) -> Result<()> {
        self.ended().map(drop)
    }

    /// [`finish`](Self::finish), with every tree and the kernels that computed it as text; empty within another scope, and of a scope that was not
    /// [started so](Self::start_explained).
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
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

/// The ops of a scope that wait.
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
