//! Handles. A program holds a number instead of an address, and a table maps it to the object.
//!
//! ```text
//! bits 63..56  the kind of object, never 0, so that a handle differs from every address in a program
//! bits 55..24  the generation: how many objects used this slot before, so that freed handles are detected
//! bits 23..0   the slot
//! ```
//!
//! Each call takes its own reference to the object from the table, so that another thread may free the handle meanwhile.

use crate::status::{Failure, NetclStatus, Result};
use std::ffi::c_void;
use std::sync::{PoisonError, RwLock};

/// Maximum number of live objects of one kind.
const MAX_OBJECTS: usize = 1 << 24;

/// All objects of one kind.
pub struct Table<T> {
    what: &'static str,
    kind: u8,
    slots: RwLock<Slots<T>>,
}

struct Slots<T> {
    all: Vec<Slot<T>>,
    free: Vec<usize>,
}

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T: Clone> Table<T> {
    /// Creates a table for objects called `what` in errors. `kind` must be unique among the tables.
    pub const fn new(what: &'static str, kind: u8) -> Self {
        Self { what, kind, slots: RwLock::new(Slots { all: Vec::new(), free: Vec::new() }) }
    }

    /// Stores an object and returns its handle.
    pub fn insert<H>(&self, value: T) -> Result<*mut H> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let at = match slots.free.pop() {
            Some(at) => at,
            None if slots.all.len() == MAX_OBJECTS => {
                let message = format!("there are {MAX_OBJECTS} {}s already; free some", self.what);
                return Err(Failure::new(NetclStatus::Memory, message));
            }
            None => {
                slots.all.push(Slot { generation: 0, value: None });
                slots.all.len() - 1
            }
        };
        slots.all[at].value = Some(value);
        let number = u64::from(self.kind) << 56 | u64::from(slots.all[at].generation) << 24 | at as u64;
        Ok(std::ptr::without_provenance_mut(number as usize))
    }

    /// Returns the object of a handle.
    pub fn get<H>(&self, handle: *const H) -> Result<T> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let (at, generation) = self.place(handle)?;
        let slot = slots.all.get(at).ok_or_else(|| self.never(handle))?;
        match &slot.value {
            Some(value) if slot.generation == generation => Ok(value.clone()),
            _ if slot.generation < generation => Err(self.never(handle)),
            _ => Err(self.freed(handle)),
        }
    }

    /// Removes the object of a handle, which becomes invalid, and returns the object.
    pub fn remove<H>(&self, handle: *const H) -> Result<T> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let (at, generation) = self.place(handle)?;
        let slot = slots.all.get_mut(at).ok_or_else(|| self.never(handle))?;
        if slot.generation < generation {
            return Err(self.never(handle));
        }
        let value = if slot.generation == generation { slot.value.take() } else { None };
        let value = value.ok_or_else(|| self.freed(handle))?;
        // A slot is retired after its last generation.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            slots.free.push(at);
        }
        Ok(value)
    }

    /// Removes every object; their handles count as freed.
    pub fn clear(&self) -> Vec<T> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let mut out = Vec::new();
        for at in 0..slots.all.len() {
            if let Some(value) = slots.all[at].value.take() {
                out.push(value);
                if let Some(next) = slots.all[at].generation.checked_add(1) {
                    slots.all[at].generation = next;
                    slots.free.push(at);
                }
            }
        }
        out
    }

    /// Returns slot and generation of a handle of this kind.
    fn place<H>(&self, handle: *const H) -> Result<(usize, u32)> {
        let number = handle.addr() as u64;
        if number == 0 {
            return Err(Failure::new(NetclStatus::Handle, format!("the {} is NULL", self.what)));
        }
        if (number >> 56) as u8 != self.kind {
            return Err(self.never(handle));
        }
        Ok((number as usize & (MAX_OBJECTS - 1), (number >> 24) as u32))
    }

    fn never<H>(&self, handle: *const H) -> Failure {
        let number = handle.cast::<c_void>();
        Failure::new(NetclStatus::Handle, format!("{number:p} is not the handle of a {}", self.what))
    }
    fn freed<H>(&self, handle: *const H) -> Failure {
        let number = handle.cast::<c_void>();
        Failure::new(NetclStatus::Handle, format!("the {} {number:p} was freed", self.what))
    }
}

#[cfg(not(target_pointer_width = "64"))]
compile_error!("handles have 64 bits: libnetcl needs a 64-bit target");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_foreign_and_random_handles_are_errors() {
        let (words, others) = (Table::new("word", 0x51), Table::new("other", 0x52));
        let a: *mut u8 = words.insert("a").unwrap();
        let other: *mut u8 = others.insert("x").unwrap();
        assert_eq!(words.get(a).unwrap(), "a");
        assert_eq!(words.remove(a).unwrap(), "a");
        let b: *mut u8 = words.insert("b").unwrap();
        assert_ne!(a, b);
        for wrong in [a, other, std::ptr::null_mut(), std::ptr::without_provenance_mut(0x1234_5678)] {
            assert_eq!(words.get(wrong).unwrap_err().status, NetclStatus::Handle);
            assert_eq!(words.remove(wrong).unwrap_err().status, NetclStatus::Handle);
        }
        assert!(words.get(a).unwrap_err().message.contains("was freed"));
        let ahead: *const u8 = std::ptr::without_provenance(b.addr() + (5 << 24));
        assert!(words.get(ahead).unwrap_err().message.contains("is not the handle of a word"));
        assert_eq!(words.clear(), ["b"]);
        assert!(words.get(b).unwrap_err().message.contains("was freed"));
    }

    #[test]
    fn random_numbers_never_reach_an_object_that_is_not_there() {
        let words = Table::new("word", 0x51);
        let mine: *mut u8 = words.insert(1).unwrap();
        let mut draw = netcl::device::draw::Draw::new(1);
        for _ in 0..100_000 {
            let random: *const u8 = std::ptr::without_provenance(draw.word() as usize);
            assert!(random == mine || words.get(random).is_err());
        }
    }
}
