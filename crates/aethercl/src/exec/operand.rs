//! Operands of instructions: registers, addresses, elements of memory.

use crate::memory::address::PointerSpace;

/// A register file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum File {
    /// One 64-bit value for all lanes.
    Uniform,
    /// 32 bits per lane.
    Word,
    /// 64 bits per lane.
    Long,
}

/// A register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reg {
    /// Its file.
    pub file: File,
    /// Whether it holds a variable: a write must then preserve the lanes outside the mask. A register without a variable is a temporary, whose other
    /// lanes are never read.
    pub variable: bool,
    /// Index in the file.
    pub index: u16,
}

/// Extension of an index to 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extend {
    /// It has them.
    Wide,
    /// From a signed 32-bit number.
    Signed,
    /// From an unsigned 32-bit number.
    Unsigned,
}

/// Part of an address: `register * scale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Index {
    /// The number.
    pub reg: Reg,
    /// Extension to 64 bits.
    pub extend: Extend,
    /// Bytes.
    pub scale: i64,
}

/// `base + index + uniform + offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The pointer.
    pub base: Reg,
    /// An index that differs between lanes.
    pub index: Option<Index>,
    /// A uniform index.
    pub uniform: Option<Index>,
    /// Bytes.
    pub offset: i64,
    /// Address space, if it is known before the address.
    pub space: Option<PointerSpace>,
    /// Alignment guaranteed by the type, in bytes.
    pub align: u32,
}

/// Type of an element in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemType {
    /// `bool`, `uchar`.
    U8,
    /// `char`.
    I8,
    /// `ushort`, `half`.
    U16,
    /// `short`.
    I16,
    /// 32 bits.
    B32,
    /// 64 bits.
    B64,
}

impl MemType {
    /// Bytes in memory.
    pub fn size(self) -> u32 {
        match self {
            MemType::U8 | MemType::I8 => 1,
            MemType::U16 | MemType::I16 => 2,
            MemType::B32 => 4,
            MemType::B64 => 8,
        }
    }

    /// Converts an element's bytes to register form.
    pub fn extend(self, bits: u64) -> u64 {
        match self {
            MemType::U8 => bits & 0xff,
            MemType::I8 => u64::from(i32::from(bits as i8) as u32),
            MemType::U16 => bits & 0xffff,
            MemType::I16 => u64::from(i32::from(bits as i16) as u32),
            MemType::B32 => bits & 0xffff_ffff,
            MemType::B64 => bits,
        }
    }

    /// Formats a value for messages: as an integer, and as a float if its bits look like one.
    pub fn show(self, bits: u64) -> String {
        let bits = self.extend(bits);
        let plain = |x: f64| x != 0.0 && (1e-6..1e9).contains(&x.abs());
        match self {
            MemType::B32 if plain(f64::from(f32::from_bits(bits as u32))) => {
                format!("{} (as float {:?})", bits as u32 as i32, f32::from_bits(bits as u32))
            }
            MemType::B64 if plain(f64::from_bits(bits)) => {
                format!("{} (as double {:?})", bits as i64, f64::from_bits(bits))
            }
            MemType::B64 => (bits as i64).to_string(),
            _ => (bits as u32 as i32).to_string(),
        }
    }
}
