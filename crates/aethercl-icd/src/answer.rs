//! How a query is answered: a value as bytes, into the room that the caller has.

use crate::cl;
use crate::cl::Result;
use crate::raw::{Handle, Out};

/// The place where a caller wants an answer, and the place for its size.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Bytes there are.
    pub size: usize,
    /// Where.
    pub value: Out<u8>,
    /// Where the size of the answer goes.
    pub size_ret: Out<usize>,
}

/// An answer as bytes.
pub trait Answer {
    /// The bytes as C has them.
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
/// Bytes as they are.
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
    /// Of a call's parameters.
    pub fn new(size: usize, value: Out<u8>, size_ret: Out<usize>) -> Self {
        Self { size, value, size_ret }
    }

    /// Gives the answer.
    ///
    /// # Errors
    /// `CL_INVALID_VALUE` where there is too little room.
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

/// Gives a list of handles to a caller that has room for `room`.
///
/// # Errors
/// `CL_INVALID_VALUE` where there is neither room nor a place for the number.
pub fn handles(list: &[Handle], room: u32, to: Out<Handle>, count: Out<u32>) -> Result<()> {
    if (to.is_null() && count.is_null()) || (!to.is_null() && room == 0) {
        return Err(cl::INVALID_VALUE);
    }
    to.set_list(&list[..list.len().min(room as usize)]);
    count.set(list.len() as u32);
    Ok(())
}
