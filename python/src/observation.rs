//! Whether this thread's operations are observed for a graph.

use netcl::prelude::{Error, Result};
use netcl::tensor::opgraph::Observation;
use std::cell::RefCell;

thread_local! {
    /// The observation of this thread.
    static OBSERVATION: RefCell<Option<Observation>> = const { RefCell::new(None) };
}

/// Stores the observation of this thread.
pub fn set(observation: Observation) {
    OBSERVATION.set(Some(observation));
}

/// Removes the observation of this thread.
pub fn take() -> Option<Observation> {
    OBSERVATION.take()
}

/// Returns whether this thread's operations are observed.
pub fn is_on() -> bool {
    OBSERVATION.with_borrow(Option::is_some)
}

/// Returns an error if this thread's operations are observed: a graph cannot contain a number that depends on its inputs.
pub fn refuse_read() -> Result<()> {
    match is_on() {
        false => Ok(()),
        true => Err(Error::unsupported(
            "a result is read on the host within a graph: a graph of operations cannot contain this; read it after the block",
        )),
    }
}
