//! Converts each call to a `Result`: checks the status and names call, object and hint.

use super::codes::{code_name, hint};
use super::sys::{Int, Table};
use crate::{Error, ErrorKind, Result};

/// Returns the error kind of a status code.
pub fn kind_of(code: Int) -> ErrorKind {
    match code {
        -4 | -6 | -61 => ErrorKind::Memory,
        -1 | -2 | -3 | -1001 | -33..=-31 => ErrorKind::Device,
        -11 | -15 | -17 | -43 | -46 => ErrorKind::Build,
        _ => ErrorKind::Launch,
    }
}

/// Returns `Ok` for 0. For any other code, returns an error with the call, its purpose, the code and advice.
pub fn check(call: &str, what: impl FnOnce() -> String, code: Int) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    let (what, hint) = (what(), hint(code));
    let mut text = format!("{call} failed with {} ({code})", code_name(code));
    for (before, part) in [(" for ", what.as_str()), ("; ", hint)] {
        if !part.is_empty() {
            text.push_str(before);
            text.push_str(part);
        }
    }
    Err(Error::new(kind_of(code), text))
}

/// Returns the function, or an error that names the function that this driver lacks.
pub fn need<F>(function: Option<F>, name: &str) -> Result<F> {
    function.ok_or_else(|| {
        Error::unsupported(format!("this OpenCL library does not have {name}; it predates OpenCL 1.2"))
    })
}

/// Reads a variable-length property through a `clGet…Info` function.
pub fn info_bytes(name: &str, mut get: impl FnMut(usize, *mut u8, *mut usize) -> Int) -> Result<Vec<u8>> {
    let mut size = 0;
    check(name, String::new, get(0, std::ptr::null_mut(), &raw mut size))?;
    let mut out = vec![0u8; size];
    if size > 0 {
        check(name, String::new, get(size, out.as_mut_ptr(), std::ptr::null_mut()))?;
    }
    Ok(out)
}

/// Converts the bytes of a C string to text, without the terminator and surrounding whitespace.
pub fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim().to_string()
}

/// Converts the bytes of a numeric property of any width.
pub fn number(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// Returns true if the table has the minimum set of functions.
pub fn usable(table: &Table) -> bool {
    table.clGetPlatformInfo.is_some() && table.clGetDeviceIDs.is_some() && table.clCreateContext.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_call_code_purpose_and_hint() {
        let Err(e) = check("clCreateBuffer", || "4096 bytes".into(), -61) else { panic!() };
        assert_eq!(e.kind(), ErrorKind::Memory);
        let text = e.to_string();
        for part in ["clCreateBuffer", "CL_INVALID_BUFFER_SIZE (-61)", "for 4096 bytes", "smaller batch"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn numbers_are_little_endian_of_any_width() {
        assert_eq!(number(&[1, 2]), 513);
        assert_eq!(number(&u64::MAX.to_le_bytes()), u64::MAX);
        assert_eq!(text(b" ab \0cd"), "ab");
    }
}
