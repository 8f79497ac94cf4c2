//! The boundary that every function of the library passes through. It catches panics, turns errors into status codes, and stores the error
//! message for the calling thread.

use crate::status::{Failure, NetclStatus, Result};
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs the body of the function called `name`.
pub fn edge(name: &str, body: impl FnOnce() -> Result<()>) -> NetclStatus {
    // A panic can only interrupt work that is protected by locks, which ignore poisoning, or that is dropped together with the body.
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return NetclStatus::Ok,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().copied();
            let text =
                text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic");
            Failure::new(NetclStatus::Internal, format!("a defect of netcl, please report it: {text}"))
        }
    };
    keep(name, &failure.message);
    failure.status
}

/// Like [`edge`], for functions that return 1 for success and 0 for failure.
pub fn flag(name: &str, body: impl FnOnce() -> Result<()>) -> c_int {
    c_int::from(edge(name, body) == NetclStatus::Ok)
}

/// Like [`edge`], for functions that return a value, or `failed` if the call fails.
pub fn value<T>(name: &str, failed: T, body: impl FnOnce() -> Result<T>) -> T {
    let mut out = failed;
    edge(name, || {
        out = body()?;
        Ok(())
    });
    out
}

fn keep(name: &str, message: &str) {
    let text = if message.starts_with(name) { message.to_owned() } else { format!("{name}: {message}") };
    let text = CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
    // A thread that is about to end can no longer read the message.
    let _ = LAST.try_with(|last| last.replace(text));
}

/// Returns the error message of this thread's latest failed call: the function, what was expected, and what was found. Returns an empty
/// string if no call has failed. A successful call does not change the message. The string is valid until the next failed call of this
/// thread.
#[unsafe(no_mangle)]
pub extern "C" fn netcl_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the version of the library, such as `0.1.0`.
#[unsafe(no_mangle)]
pub extern "C" fn netcl_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn last() -> String {
        // SAFETY: the string belongs to this thread, and no other call changes it meanwhile.
        unsafe { CStr::from_ptr(netcl_last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_is_an_error_with_its_text() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| ()));
        assert_eq!(edge("netcl_some", || std::panic::panic_any("out of order")), NetclStatus::Internal);
        std::panic::set_hook(hook);
        assert_eq!(last(), "netcl_some: a defect of netcl, please report it: out of order");
        assert_eq!(flag("netcl_other", || Ok(())), 1);
        assert!(last().starts_with("netcl_some"), "a success does not hide an error");
    }

    #[test]
    fn each_thread_has_its_own_text() {
        assert_eq!(flag("here", || Err(Failure::argument("one\0two"))), 0);
        std::thread::spawn(|| assert_eq!(last(), "")).join().unwrap();
        assert_eq!(last(), "here: one\u{fffd}two");
    }
}
