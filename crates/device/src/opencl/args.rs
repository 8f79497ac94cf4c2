//! Remembers the last values of a kernel's arguments, so that unchanged arguments are not set again.

use super::objects::{ClMemory, Set, foreign};
use crate::Result;
use crate::driver::Arg;

impl Set {
    /// Returns `None` if the value is too long to remember.
    pub fn of(arg: &Arg<'_>) -> Result<Option<Self>> {
        Ok(match arg {
            Arg::Memory(m, _) => {
                Some(Self::Memory(m.get::<ClMemory>().ok_or_else(|| foreign("memory object"))?.id))
            }
            Arg::Scalar(bytes) if bytes.len() <= 8 => {
                let mut value = [0; 8];
                value[..bytes.len()].copy_from_slice(bytes);
                Some(Self::Scalar(value, bytes.len()))
            }
            Arg::Scalar(_) => None,
            Arg::Local(bytes) => Some(Self::Local(*bytes)),
            Arg::Indirect(..) => None,
        })
    }
}
