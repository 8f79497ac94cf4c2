//! 64-bit device addresses. An address carries its origin, so that a finding can name the object.
//!
//! | bits   | global                                    | constant, local, private             |
//! |--------|-------------------------------------------|--------------------------------------|
//! | 63..56 | space (0)                                 | space (1, 2, 3)                      |
//! | 55..48 | argument number + 1, 0 for an unknown one | object number, high byte             |
//! | 47..32 | address                                   | object number, low bytes             |
//! | 31..0  | address                                   | byte offset in the space + [`BIAS`]  |
//!
//! Pointer arithmetic changes the low bits. With the bias in the middle of 32 bits, moving up to 1 GiB in either direction does not change object and
//! space.

/// Added to the offset of constant, local and private addresses.
pub const BIAS: u64 = 0x4000_0000;

/// The address space of a pointer, encoded in the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointerSpace {
    /// Device memory.
    Global,
    /// Program-scope constants.
    Constant,
    /// Memory of a work-group.
    Local,
    /// Memory of a work-item.
    Private,
}

impl PointerSpace {
    /// Returns the OpenCL C name.
    pub fn name(self) -> &'static str {
        match self {
            PointerSpace::Global => "global",
            PointerSpace::Constant => "constant",
            PointerSpace::Local => "local",
            PointerSpace::Private => "private",
        }
    }
}

/// Returns the space of an address. Values that are not addresses (an integer cast to a pointer) count as global.
pub fn space(address: u64) -> PointerSpace {
    match address >> 56 {
        1 => PointerSpace::Constant,
        2 => PointerSpace::Local,
        3 => PointerSpace::Private,
        _ => PointerSpace::Global,
    }
}

/// Returns the pointer to byte `offset` of the space, belonging to `object`.
pub fn object_pointer(space: PointerSpace, object: u32, offset: u64) -> u64 {
    let tag = match space {
        PointerSpace::Global => 0,
        PointerSpace::Constant => 1,
        PointerSpace::Local => 2,
        PointerSpace::Private => 3,
    };
    (tag << 56) | (u64::from(object & 0x00ff_ffff) << 32) | (offset + BIAS)
}

/// Returns the object number of a constant, local or private address.
pub fn object(address: u64) -> u32 {
    ((address >> 32) & 0x00ff_ffff) as u32
}

/// Returns the byte offset within its space of a constant, local or private address; wraps below zero.
pub fn offset(address: u64) -> u32 {
    (address as u32).wrapping_sub(BIAS as u32)
}

/// Number of arguments that an address can distinguish.
pub const MAX_ARGUMENTS: usize = 254;

/// Returns a global address with its argument number, if the number fits.
pub fn with_argument(address: u64, argument: usize) -> u64 {
    let number = if argument < MAX_ARGUMENTS { argument as u64 + 1 } else { 0 };
    (address & GLOBAL) | (number << 48)
}

/// Returns the argument that a global address came from.
pub fn argument(address: u64) -> Option<usize> {
    match (address >> 48) & 0xff {
        0 => None,
        n => Some(n as usize - 1),
    }
}

/// Start of the writable program-scope variables: far above the addresses of [`super::Memory`].
pub const PROGRAM_SCOPE: u64 = 0x7000_0000_0000;

/// The bits of a global address without its provenance.
pub const GLOBAL: u64 = 0x0000_ffff_ffff_ffff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_below_its_object_keeps_space_and_object() {
        let p = object_pointer(PointerSpace::Local, 7, 0).wrapping_sub(4);
        assert_eq!((space(p), object(p), offset(p)), (PointerSpace::Local, 7, 0u32.wrapping_sub(4)));
    }

    #[test]
    fn a_global_pointer_remembers_its_argument() {
        let p = with_argument(0x1_0000, 3) + 12;
        assert_eq!((space(p), argument(p), p & GLOBAL), (PointerSpace::Global, Some(3), 0x1_000c));
        assert_eq!(argument(0x1_0000), None);
    }
}
