//! Sees operations as they are called on this thread, for those who note what a function computes.
//!
//! An operation that others are made of is noted as one; what it calls itself is not.

use super::call::Attributes;
use crate::{Result, Tensor, tape};
use netcl_device::version::Version;
use std::cell::RefCell;
use std::ops::Range;

/// One call of an operation.
pub(crate) struct Called {
    /// The name it can be called by.
    pub name: &'static str,
    /// The tensors it was given.
    pub inputs: Vec<Option<Tensor>>,
    /// What else.
    pub attributes: Attributes,
    /// What came of it.
    pub results: Vec<Tensor>,
    /// The layer at work: the name that [`in_layer`] was given, else the number of [`tape::layer`], else nothing.
    pub layer: String,
    /// What was in the memory of inputs and results when they were read and written.
    pub versions: Vec<(Tensor, Version)>,
    /// The commands of the device's recording that are its own.
    pub commands: Range<usize>,
}

#[derive(Default)]
struct State {
    called: Vec<Called>,
    /// Whether an operation is at work.
    within: bool,
}

thread_local! {
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
    static LAYERS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Puts back what was watched before.
struct Restore(Option<State>);

impl Drop for Restore {
    fn drop(&mut self) {
        STATE.set(self.0.take());
    }
}

/// Runs `f`; what was called meanwhile.
pub(crate) fn watch<R>(f: impl FnOnce() -> R) -> (R, Vec<Called>) {
    let _restore = Restore(STATE.replace(Some(State::default())));
    let out = f();
    (out, STATE.take().unwrap_or_default().called)
}

/// Whether somebody watches on this thread. Operations are not deferred then.
pub(crate) fn watching() -> bool {
    STATE.with_borrow(Option::is_some)
}

/// Runs `f` as the layer of this name, within the layers around it.
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

/// An operation that is at work. Dropped without [`Open::done`], it has failed.
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

/// An operation begins; `None` where nobody watches, or within another one.
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

/// The operation that [`begin`] noted is done.
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

/// Notes a function of one result that is no [`Op`](super::Op).
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
