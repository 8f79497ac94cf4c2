//! Results of `clGet…Info`: values as bytes, copied into the caller's memory.

use crate::cl;
use crate::cl::Result;
use crate::raw::{Handle, Out};

/// The last three parameters of every `clGet…Info`.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Size of the caller's memory in bytes.
    pub size: usize,
    /// The caller's memory; may be null.
    pub value: Out<u8>,
    /// Address for the size of the value; may be null.
    pub size_ret: Out<usize>,
}

/// A value that can be returned by a query.
pub trait Answer {
    /// Returns its bytes in C layout.
    fn bytes(&self) -> Vec<u8>;
}

macro_rules! numbers {
    ($($ty:ty),*) => { $(
        impl Answer for $ty {
            fn bytes(&self) -> Vec<u8> { self.to_ne_bytes().to_vec() }
        }
        impl Answer for [$ty] {
            fn bytes(&self) -> Vec<u8> { self.iter().flat_map(|v| v.to_ne_bytes()).collect() }
        }
    )* };
}
numbers!(i32, u32, u64, usize);

impl Answer for bool {
    fn bytes(&self) -> Vec<u8> {
        u32::from(*self).bytes()
    }
}
impl Answer for Handle {
    fn bytes(&self) -> Vec<u8> {
        self.0.bytes()
    }
}
impl Answer for [Handle] {
    fn bytes(&self) -> Vec<u8> {
        self.iter().flat_map(Answer::bytes).collect()
    }
}
impl Answer for str {
    fn bytes(&self) -> Vec<u8> {
        self.bytes().chain([0]).collect()
    }
}
/// Raw bytes.
impl Answer for [u8] {
    fn bytes(&self) -> Vec<u8> {
        self.to_vec()
    }
}

/// Names with versions (`cl_name_version`).
impl Answer for [(u32, &str)] {
    fn bytes(&self) -> Vec<u8> {
        let entry = |(version, name): &(u32, &str)| {
            let mut bytes = version.bytes();
            bytes.extend(name.as_bytes().iter().take(63));
            bytes.resize(4 + 64, 0);
            bytes
        };
        self.iter().flat_map(entry).collect()
    }
}

impl Room {
    /// Converts the parameters of a call.
    pub fn new(size: usize, value: Out<u8>, size_ret: Out<usize>) -> Self {
        Self { size, value, size_ret }
    }

    /// Stores the value and its size.
    ///
    /// # Errors
    /// `CL_INVALID_VALUE` if the caller's memory is too small.
    pub fn give<A: Answer + ?Sized>(self, answer: &A) -> Result<()> {
        let bytes = answer.bytes();
        if !self.value.is_null() {
            if self.size < bytes.len() {
                return Err(cl::INVALID_VALUE);
            }
            self.value.set_list(&bytes);
        }
        self.size_ret.set(bytes.len());
        Ok(())
    }
}

/// Stores up to `room` handles and the total number.
///
/// # Errors
/// `CL_INVALID_VALUE` if both pointers are null, or `room` is 0 with a list given.
pub fn handles(list: &[Handle], room: u32, to: Out<Handle>, count: Out<u32>) -> Result<()> {
    if (to.is_null() && count.is_null()) || (!to.is_null() && room == 0) {
        return Err(cl::INVALID_VALUE);
    }
    to.set_list(&list[..list.len().min(room as usize)]);
    count.set(list.len() as u32);
    Ok(())
}
