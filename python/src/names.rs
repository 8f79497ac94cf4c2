//! Strings that live as long as the process: names on the tape, kernels and their sources. Each string is stored once.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

static KEPT: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// Returns a copy of the string that lives until the process ends.
pub fn interned(text: &str) -> &'static str {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = kept.get(text) {
        return found;
    }
    let made: &'static str = Box::leak(text.to_owned().into_boxed_str());
    kept.insert(made);
    made
}
