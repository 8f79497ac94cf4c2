//! A read position in bytes that only moves forward and never beyond their end.

use netcl_tensor::{Error, Result};

/// The remaining bytes and the position.
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns the number of bytes read so far.
    pub fn place(&self) -> usize {
        self.at
    }

    /// Returns the number of remaining bytes.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Returns the bytes read since `start`.
    pub fn since(&self, start: usize) -> &'a [u8] {
        self.bytes.get(start..self.at).unwrap_or_default()
    }

    /// Returns the next `n` bytes; `Format` if fewer remain.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        if n > self.left() {
            return Err(Error::format(format!(
                "{n} bytes at byte {}, but the file has only {} left: it is damaged or incomplete",
                self.at,
                self.left()
            )));
        }
        let start = self.at;
        self.at += n;
        Ok(&self.bytes[start..self.at])
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.take(N)?;
        <[u8; N]>::try_from(bytes).map_err(|_| Error::internal("a slice of another length"))
    }

    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Returns a number of bytes or elements, at most the number of remaining bytes, because each takes at least one.
    pub fn length(&mut self) -> Result<usize> {
        let n = self.u64()?;
        match usize::try_from(n) {
            Ok(n) if n <= self.left() => Ok(n),
            _ => Err(Error::format(format!(
                "a length of {n} at byte {}, but the file has only {} bytes left",
                self.at - 8,
                self.left()
            ))),
        }
    }

    /// Returns a string: length and UTF-8.
    pub fn text(&mut self) -> Result<&'a str> {
        let length = self.length()?;
        let start = self.at;
        std::str::from_utf8(self.take(length)?)
            .map_err(|e| Error::format(format!("the string at byte {start} is not valid UTF-8: {e}")))
    }
}
