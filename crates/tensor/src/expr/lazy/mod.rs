//! Ops that wait for others and become one kernel with them: [`lazy`].
//!
//! Within a scope an op that is a node of a tree ([`Term`]) allocates its result and grows the tree. The tree is computed, and put on the
//! tape as one op, before a command of the thread uses a result, or overwrites what the tree reads; when a backward begins; when it
//! is large; and at the end of the scope. Results that nobody has kept by then are never stored. A product waits too, and what
//! follows it element by element becomes its epilogue.

mod compute;
mod epilogue;
mod group;
mod term;
#[cfg(test)]
mod tests;

use crate::tape::{self, Scope, Term};
use crate::{Result, Tensor};
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
    let scope = Lazy::start();
    if let Some(own) = &scope.own {
        own.waiting.explain.set(true);
    }
    scoped(scope, f).map(|(out, shown)| (out, shown.join("\n")))
}

fn scoped<R>(scope: Lazy, f: impl FnOnce() -> Result<R>) -> Result<(R, Vec<String>)> {
    let out = f();
    // What the closure has left elsewhere is computed also where it fails.
    let finished = scope.ended();
    Ok((out?, finished?))
}

/// A lazy scope of this thread for callers that have no closure: from [`Lazy::start`] to [`Lazy::finish`]. Dropped without that, as by
/// an error, it computes nothing more: what waits then can be used no more.
pub struct Lazy {
    /// None within another scope.
    own: Option<Before>,
    /// Belongs to the thread.
    _thread: PhantomData<*const ()>,
}

/// What a scope replaced.
struct Before {
    waiting: Rc<Waiting>,
    scope: Option<Rc<dyn Scope>>,
    deferred: Option<Rc<dyn Deferred>>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Waiting>>> = const { RefCell::new(None) };
}

impl Lazy {
    /// Ops of this thread wait from now on.
    #[must_use]
    pub fn start() -> Self {
        if CURRENT.with_borrow(Option::is_some) {
            return Self { own: None, _thread: PhantomData };
        }
        let waiting = Rc::new(Waiting::default());
        CURRENT.set(Some(Rc::clone(&waiting)));
        let scope = tape::in_scope(Some(Rc::clone(&waiting) as Rc<dyn Scope>));
        let deferred = defer_by(Some(Rc::clone(&waiting) as Rc<dyn Deferred>));
        Self { own: Some(Before { waiting, scope, deferred }), _thread: PhantomData }
    }

    /// Computes what waits and ends the scope. Within another one it is part of that.
    ///
    /// # Errors
    /// What the device says.
    pub fn finish(self) -> Result<()> {
        self.ended().map(drop)
    }

    fn ended(mut self) -> Result<Vec<String>> {
        let Some(before) = self.own.as_ref() else { return Ok(Vec::new()) };
        let waiting = Rc::clone(&before.waiting);
        let settled = waiting.settle();
        self.end();
        settled.map(|()| waiting.shown.take())
    }

    fn end(&mut self) {
        let Some(before) = self.own.take() else { return };
        tape::in_scope(before.scope);
        defer_by(before.deferred);
        CURRENT.set(None);
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
    explain: Cell<bool>,
    shown: RefCell<Vec<String>>,
}

impl Waiting {
    fn settle(&self) -> Result<()> {
        let group = self.open.borrow_mut().take();
        let Some(group) = group else { return Ok(()) };
        let text = tape::eagerly(|| tape::no_grad(|| compute::compute(group, self.explain.get())))?;
        self.shown.borrow_mut().extend(text);
        Ok(())
    }
}

impl Scope for Waiting {
    fn defer(&self, op: &'static str, term: Term, inputs: &[&Tensor]) -> Result<Option<Tensor>> {
        let Some(first) = inputs.first() else { return Ok(None) };
        if self.open.borrow().as_ref().is_some_and(|group| !group.takes(first.device(), &term, inputs)) {
            self.settle()?;
        }
        let mut open = self.open.borrow_mut();
        open.get_or_insert_with(|| Group::new(first.device())).add(op, &term, inputs).map(Some)
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
