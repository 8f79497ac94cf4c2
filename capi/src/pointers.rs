//! Pointers passed by a program: strings, arrays, and outputs. A null or misaligned pointer is an error. Only the program can know whether
//! the memory is as large as the call says.

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
        _ => Err(Failure::argument(format!("{what}: {count} elements exceed the address space"))),
    }
}

/// Reads a string that ends with a zero byte.
///
/// # Safety
/// `at` is null or points to such a string, which must not change meanwhile.
pub unsafe fn text<'a>(what: &str, at: *const c_char) -> Result<&'a str> {
    check(what, at, 1)?;
    // SAFETY: not null; the caller guarantees the rest.
    let text = unsafe { CStr::from_ptr(at) };
    text.to_str().map_err(|_| Failure::argument(format!("{what} is not UTF-8")))
}

/// Reads a string like [`text`], or returns `None` for NULL.
///
/// # Safety
/// The same as for [`text`].
pub unsafe fn text_or_none<'a>(what: &str, at: *const c_char) -> Result<Option<&'a str>> {
    if at.is_null() {
        return Ok(None);
    }
    // SAFETY: passed on from the caller.
    unsafe { text(what, at) }.map(Some)
}

/// Returns `count` elements for reading. The pointer may be NULL if `count` is 0.
///
/// # Safety
/// `at` is null or points to `count` elements, which must not change meanwhile.
pub unsafe fn slice<'a, T>(what: &str, at: *const T, count: usize) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    check(what, at, count)?;
    // SAFETY: not null, aligned, with a possible size; the caller guarantees the rest.
    Ok(unsafe { std::slice::from_raw_parts(at, count) })
}

/// Returns `count` elements for writing. The pointer may be NULL if `count` is 0.
///
/// # Safety
/// `at` is null or points to `count` elements, which nothing else uses meanwhile.
pub unsafe fn slice_mut<'a, T>(what: &str, at: *mut T, count: usize) -> Result<&'a mut [T]> {
    if count == 0 {
        return Ok(&mut []);
    }
    check(what, at, count)?;
    // SAFETY: not null, aligned, with a possible size; the caller guarantees the rest.
    Ok(unsafe { std::slice::from_raw_parts_mut(at, count) })
}

/// Writes a result.
///
/// # Safety
/// `at` is null or points to memory for the result.
pub unsafe fn put<T>(what: &str, at: *mut T, value: T) -> Result<()> {
    check(what, at, 1)?;
    // SAFETY: not null and aligned; the caller guarantees the size.
    unsafe { at.write(value) };
    Ok(())
}

/// Rejects an invalid output pointer before any work is done.
pub fn check_out<T>(what: &str, at: *mut T) -> Result<()> {
    check(what, at.cast_const(), 1)
}

/// Copies a string to a buffer of the program.
///
/// # Safety
/// `text` points to space for `room` bytes or is null; `length` points to space for a number or is null.
pub unsafe fn hand_out(line: &str, text: *mut c_char, room: usize, length: *mut usize) -> Result<()> {
    if !length.is_null() {
        // SAFETY: guaranteed by the caller.
        unsafe { put("length", length, line.len()) }?;
    }
    if text.is_null() {
        return Ok(());
    }
    if room <= line.len() {
        return Err(Failure::argument(format!("the buffer has {room} bytes, {} are needed", line.len() + 1)));
    }
    // SAFETY: likewise.
    let to = unsafe { slice_mut("text", text.cast::<u8>(), line.len() + 1) }?;
    to[..line.len()].copy_from_slice(line.as_bytes());
    to[line.len()] = 0;
    Ok(())
}
