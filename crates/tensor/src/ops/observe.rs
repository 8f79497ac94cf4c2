//! Observation of operations as they are called on this thread, for callers that record what a function computes.
//!
//! An operation composed of others is recorded as one; its inner calls are not.

use super::call::Attributes;
use crate::{Result, Tensor, tape};
use netcl_device::version::Version;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

/// A recorded call of an operation.
pub(crate) struct Called {
    /// Name by which it can be called.
    pub name: &'static str,
    /// Input tensors.
    pub inputs: Vec<Option<Tensor>>,
    /// Attributes.
    pub attributes: Attributes,
    /// Results.
    pub results: Vec<Tensor>,
    /// Current layer: the name passed to [`in_layer`], otherwise the number of [`tape::layer`], otherwise empty.
    pub layer: String,
    /// Versions of the memory of inputs and results when they were read and written.
    pub versions: Vec<(Tensor, Version)>,
    /// Commands of the operation in the device's recording.
    pub commands: Range<usize>,
}

#[derive(Default)]
struct State {
    called: Vec<Called>,
    /// Whether an operation is in progress.
    within: bool,
}

thread_local! {
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
    static LAYERS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Restores the previous observation.
struct Restore(Option<State>);

impl Drop for Restore {
    fn drop(&mut self) {
        STATE.set(self.0.take());
    }
}

/// Runs `f` and returns the calls made meanwhile.
pub(crate) fn watch<R>(f: impl FnOnce() -> R) -> (R, Vec<Called>) {
    let _restore = Restore(STATE.replace(Some(State::default())));
    let out = f();
    (out, STATE.take().unwrap_or_default().called)
}

/// An observation from [`Session::start`] on, for callers without a function. It ends when it is dropped.
pub(crate) struct Session {
    _restore: Restore,
    /// The observation belongs to its thread.
    _one_thread: PhantomData<*const ()>,
}

impl Session {
    pub fn start() -> Self {
        Self { _restore: Restore(STATE.replace(Some(State::default()))), _one_thread: PhantomData }
    }
    /// Returns the calls since the start.
    pub fn stop(self) -> Vec<Called> {
        STATE.take().unwrap_or_default().called
    }
}

/// Returns whether this thread is observed. Operations are not deferred in this case.
pub(crate) fn watching() -> bool {
    STATE.with_borrow(Option::is_some)
}

/// Runs `f` as the layer with this name, nested in the current layers.
pub(crate) fn in_layer<R>(name: &str, f: impl FnOnce() -> R) -> R {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            LAYERS.with_borrow_mut(|layers| layers.pop());
        }
    }
    LAYERS.with_borrow_mut(|layers| layers.push(name.to_owned()));
    let _leave = Leave;
    f()
}

fn layer() -> String {
    let named = LAYERS.with_borrow(|layers| layers.join("."));
    match tape::current_layer() {
        0 => named,
        number if named.is_empty() => format!("layer {number}"),
        _ => named,
    }
}

/// An operation in progress. If it is dropped without [`end`], the operation has failed.
pub(crate) struct Open(Option<Called>);

impl Drop for Open {
    fn drop(&mut self) {
        STATE.with_borrow_mut(|state| {
            if let Some(state) = state {
                state.within = false;
            }
        });
    }
}

fn version(t: &Tensor) -> (Tensor, Version) {
    (t.clone(), t.storage().version())
}

/// Records the start of an operation. Returns `None` if nobody observes, or within another operation.
pub(crate) fn begin(
    name: &'static str,
    describe: impl FnOnce() -> (Vec<Option<Tensor>>, Attributes),
) -> Option<Open> {
    enter().then(|| open(name, describe()))
}

/// Returns whether an outermost operation begins that an observer wants.
fn enter() -> bool {
    STATE.with_borrow_mut(|state| match state {
        Some(state) if !state.within => {
            state.within = true;
            true
        }
        _ => false,
    })
}

fn open(name: &'static str, (inputs, attributes): (Vec<Option<Tensor>>, Attributes)) -> Open {
    let at = inputs.iter().flatten().next().map_or(0, |x| x.device().commands_noted());
    let (results, layer) = (Vec::new(), layer());
    let versions = inputs.iter().flatten().map(version).collect();
    Open(Some(Called { name, inputs, attributes, results, layer, versions, commands: at..at }))
}

/// Records that an operation started by [`begin`] is done.
pub(crate) fn end(open: Option<Open>, results: &[Tensor]) {
    let Some(mut called) = open.and_then(|mut open| open.0.take()) else { return };
    called.results = results.to_vec();
    called.versions.extend(results.iter().map(version));
    called.commands.end =
        results.first().map_or(0, |y| y.device().commands_noted()).max(called.commands.start);
    STATE.with_borrow_mut(|state| {
        if let Some(state) = state {
            state.called.push(called);
        }
    });
}

/// Records a function of one result that is not an [`Op`](super::Op).
pub(crate) fn noted(
    name: &'static str,
    inputs: &[&Tensor],
    attributes: impl FnOnce() -> Attributes,
    run: impl FnOnce() -> Result<Tensor>,
) -> Result<Tensor> {
    let open = begin(name, || (inputs.iter().map(|x| Some((*x).clone())).collect(), attributes()));
    let y = run()?;
    end(open, std::slice::from_ref(&y));
    Ok(y)
}
