//! What a program points to: texts, arrays, places for results. A null or misaligned pointer is an error; that there is as much behind
//! it as the call says, only the program can know.

use crate::status::{Failure, Result};
use std::ffi::{CStr, c_char};

fn check<T>(what: &str, at: *const T, count: usize) -> Result<()> {
    if at.is_null() {
        return Err(Failure::argument(format!("{what} is NULL")));
    }
    if !at.is_aligned() {
        return Err(Failure::argument(format!("{what} is not aligned to {} bytes", align_of::<T>())));
    }
    match count.checked_mul(size_of::<T>()) {
        Some(bytes) if bytes <= isize::MAX.cast_unsigned() => Ok(()),
        _ => Err(Failure::argument(format!("{what}: {count} elements are more than memory can hold"))),
    }
}

/// A text that ends with a zero byte.
///
/// # Safety
/// `at` is null or points to such a text, which nobody changes meanwhile.
pub unsafe fn text<'a>(what: &str, at: *const c_char) -> Result<&'a str> {
    check(what, at, 1)?;
    // SAFETY: not null; the caller vouches for the rest.
    let text = unsafe { CStr::from_ptr(at) };
    text.to_str().map_err(|_| Failure::argument(format!("{what} is not UTF-8")))
}

/// The same where NULL is none.
///
/// # Safety
/// As [`text`].
pub unsafe fn text_or_none<'a>(what: &str, at: *const c_char) -> Result<Option<&'a str>> {
    if at.is_null() {
        return Ok(None);
    }
    // SAFETY: handed on.
    unsafe { text(what, at) }.map(Some)
}

/// `count` elements to read; of none the pointer may be NULL.
///
/// # Safety
/// `at` is null or points to as many, which nobody changes meanwhile.
pub unsafe fn slice<'a, T>(what: &str, at: *const T, count: usize) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    check(what, at, count)?;
    // SAFETY: not null, aligned, of a size that can be; the caller vouches for the rest.
    Ok(unsafe { std::slice::from_raw_parts(at, count) })
}

/// `count` elements to write; of none the pointer may be NULL.
///
/// # Safety
/// `at` is null or points to as many, which nobody else uses meanwhile.
pub unsafe fn slice_mut<'a, T>(what: &str, at: *mut T, count: usize) -> Result<&'a mut [T]> {
    if count == 0 {
        return Ok(&mut []);
    }
    check(what, at, count)?;
    // SAFETY: not null, aligned, of a size that can be; the caller vouches for the rest.
    Ok(unsafe { std::slice::from_raw_parts_mut(at, count) })
}

/// Writes a result.
///
/// # Safety
/// `at` is null or points to room for it.
pub unsafe fn put<T>(what: &str, at: *mut T, value: T) -> Result<()> {
    check(what, at, 1)?;
    // SAFETY: not null and aligned; the caller vouches for the room.
    unsafe { at.write(value) };
    Ok(())
}

/// Refuses a place for a result that is none before anything is done.
pub fn check_out<T>(what: &str, at: *mut T) -> Result<()> {
    check(what, at.cast_const(), 1)
}
