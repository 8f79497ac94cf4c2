//! Guards against libraries that panic on malformed files.

use crate::error::{Error, Result};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Returns true while this thread is inside [`guarded`]: a panic there becomes an error and needs no report.
pub fn is_guarded() -> bool {
    GUARDED.get()
}

/// Returns the result of `work`. `work` must not change state that is visible after a panic.
///
/// # Errors
/// `Format` with `what` and the panic message.
pub fn guarded<T>(what: &str, work: impl FnOnce() -> T) -> Result<T> {
    let before = GUARDED.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(before);
    done.map_err(|panic| {
        let words = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let words = words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Error::format(format!("{what} gave up: {words}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error() {
        assert_eq!(guarded("a", || 3).unwrap(), 3);
        let error = guarded("the library", || {
            assert!(is_guarded());
            Vec::<u8>::new()[usize::from(is_guarded())]
        });
        assert!(error.unwrap_err().message().contains("the library gave up: index out of bounds"));
        assert!(!is_guarded());
    }
}
