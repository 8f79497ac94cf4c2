//! Types of OpenCL C and their layout in memory.
//!
//! [`Type`] is a small copyable value; pointers, arrays and records are interned in [`Types`], so that two types are the
//! same exactly when they compare equal. Sizes and alignments are those of section 6.1 of the OpenCL C specification, with
//! 64-bit pointers and `size_t`.

mod display;
mod image;

pub use image::{ImageAccess, ImageKind};

use std::collections::HashMap;

/// A scalar type. `size_t`, `ptrdiff_t`, enumerations and similar are names for these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scalar {
    /// One byte, 0 or 1.
    Bool,
    /// `char`, which is signed.
    I8,
    /// `uchar`.
    U8,
    /// `short`.
    I16,
    /// `ushort`.
    U16,
    /// `int`, also the type of comparisons and enumerations.
    I32,
    /// `uint`.
    U32,
    /// `long`, 64 bits; `ptrdiff_t`.
    I64,
    /// `ulong`, 64 bits; `size_t`.
    U64,
    /// `half`: always a storage type; arithmetic only with `cl_khr_fp16`.
    F16,
    /// `float`.
    F32,
    /// `double`.
    F64,
}

impl Scalar {
    /// Bytes in memory.
    pub const fn size(self) -> u64 {
        match self {
            Self::Bool | Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 | Self::F16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Returns the bits of a value; 1 for `bool`.
    pub const fn bits(self) -> u32 {
        match self {
            Self::Bool => 1,
            other => other.size() as u32 * 8,
        }
    }

    /// Returns true for `half`, `float` or `double`.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::F32 | Self::F64)
    }

    /// Returns true for an integer or `bool`.
    pub const fn is_integer(self) -> bool {
        !self.is_float()
    }

    /// Returns a signed integer.
    pub const fn is_signed(self) -> bool {
        matches!(self, Self::I8 | Self::I16 | Self::I32 | Self::I64)
    }

    /// Returns the signed integer of the same width: the result type of a comparison of vectors of this type.
    pub const fn signed_of_width(self) -> Self {
        match self.size() {
            1 => Self::I8,
            2 => Self::I16,
            4 => Self::I32,
            _ => Self::I64,
        }
    }

    /// The unsigned integer of the same width.
    pub const fn unsigned_of_width(self) -> Self {
        match self.size() {
            1 => Self::U8,
            2 => Self::U16,
            4 => Self::U32,
            _ => Self::U64,
        }
    }

    /// Returns the name in OpenCL C.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::I8 => "char",
            Self::U8 => "uchar",
            Self::I16 => "short",
            Self::U16 => "ushort",
            Self::I32 => "int",
            Self::U32 => "uint",
            Self::I64 => "long",
            Self::U64 => "ulong",
            Self::F16 => "half",
            Self::F32 => "float",
            Self::F64 => "double",
        }
    }
}

/// An address space. Pointers are 64 bits wide in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// Memory of one work-item.
    Private,
    /// Memory of one work-group.
    Local,
    /// Read-only memory of the device.
    Constant,
    /// Memory of the device.
    Global,
    /// Private, local or global, determined at run time; OpenCL C 2.0 and later.
    Generic,
}

/// A type. Qualifiers are part of the pointer ([`PointerType`]) or the variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Type {
    /// No value.
    Void,
    /// One number.
    Scalar(Scalar),
    /// 2, 3, 4, 8 or 16 numbers; three occupy the space of four.
    Vector(Scalar, u8),
    /// An address; see [`Types::pointer`].
    Pointer(PointerId),
    /// Contiguous elements; see [`Types::array`].
    Array(ArrayId),
    /// A structure or union; see [`Types::record`].
    Record(RecordId),
    /// `atomic_int` and the other atomic types: memory like the scalar's, accessible only through the atomic functions.
    Atomic(Scalar),
    /// `event_t`: 64 bits, created by the asynchronous copies.
    Event,
    /// `image2d_t` and the other kinds: its address, then width, height, depth, layers, channel order and channel type in 32 bits each.
    Image(ImageKind, ImageAccess),
    /// `sampler_t`: 32 bits.
    Sampler,
}

/// `int`.
pub const INT: Type = Type::Scalar(Scalar::I32);
/// `bool`.
pub const BOOL: Type = Type::Scalar(Scalar::Bool);
/// `size_t`.
pub const SIZE_T: Type = Type::Scalar(Scalar::U64);

impl Type {
    /// Returns the scalar, or a vector's element.
    pub const fn element(self) -> Option<Scalar> {
        match self {
            Self::Scalar(s) | Self::Vector(s, _) => Some(s),
            _ => None,
        }
    }

    /// Returns the lanes of a vector; 1 for every other type.
    pub const fn lanes(self) -> u8 {
        match self {
            Self::Vector(_, n) => n,
            _ => 1,
        }
    }

    /// Returns true if it is a vector.
    pub const fn is_vector(self) -> bool {
        matches!(self, Self::Vector(..))
    }

    /// Returns true if it is a pointer.
    pub const fn is_pointer(self) -> bool {
        matches!(self, Self::Pointer(_))
    }

    /// Returns true if it is a scalar integer or `bool`.
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::Scalar(s) if s.is_integer())
    }

    /// Returns the scalar for one lane, the vector for several.
    pub const fn of_lanes(element: Scalar, lanes: u8) -> Self {
        if lanes == 1 { Self::Scalar(element) } else { Self::Vector(element, lanes) }
    }
}

/// Index of an interned pointer type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PointerId(u32);
/// Index of an interned array type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ArrayId(u32);
/// Index of a structure or union.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordId(u32);

/// Target of a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PointerType {
    /// The type pointed to.
    pub to: Type,
    /// Address space of the target.
    pub space: Space,
    /// Whether the pointee is `const`.
    pub is_const: bool,
    /// Whether the pointee is `volatile`.
    pub is_volatile: bool,
    /// Alignment of the pointee in bytes if an attribute changed it (`typedef … __attribute__((aligned(2)))`), otherwise 0.
    pub aligned: u32,
}

/// An array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArrayType {
    /// Type of an element.
    pub of: Type,
    /// Number of elements.
    pub len: u64,
}

/// A structure or union.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The tag, or empty.
    pub tag: String,
    /// Whether every field is at offset 0.
    pub is_union: bool,
    /// False between `struct s;` and its definition.
    pub complete: bool,
    /// Fields in order; members of anonymous members are listed with their offsets in this record.
    pub fields: Vec<Field>,
    /// Bytes, with padding at the end.
    pub size: u64,
    /// Bytes.
    pub align: u64,
}

/// A field of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name; empty for an anonymous member.
    pub name: String,
    /// Its type.
    pub ty: Type,
    /// Byte offset from the record's start.
    pub offset: u64,
    /// Declared `const`.
    pub is_const: bool,
    /// Whether it is repeated from a preceding anonymous member.
    pub inherited: bool,
}

/// Every pointer, array and record type of one program.
#[derive(Clone, Debug, Default)]
pub struct Types {
    pointers: Vec<PointerType>,
    pointer_ids: HashMap<PointerType, PointerId>,
    arrays: Vec<ArrayType>,
    array_ids: HashMap<ArrayType, ArrayId>,
    records: Vec<Record>,
}

impl Types {
    /// Returns the target of a pointer type.
    pub fn pointer(&self, id: PointerId) -> PointerType {
        self.pointers[id.0 as usize]
    }

    /// Returns element and length of an array type.
    pub fn array(&self, id: ArrayId) -> ArrayType {
        self.arrays[id.0 as usize]
    }

    /// Returns fields and layout of a structure or union.
    pub fn record(&self, id: RecordId) -> &Record {
        &self.records[id.0 as usize]
    }

    /// Returns the target of `ty`, if it is a pointer.
    pub fn pointee(&self, ty: Type) -> Option<PointerType> {
        match ty {
            Type::Pointer(id) => Some(self.pointer(id)),
            _ => None,
        }
    }

    /// Returns the pointer type with these properties.
    pub fn pointer_to(&mut self, pointer: PointerType) -> Type {
        let next = PointerId(self.pointers.len() as u32);
        let id = *self.pointer_ids.entry(pointer).or_insert(next);
        if id == next {
            self.pointers.push(pointer);
        }
        Type::Pointer(id)
    }

    /// Returns the array type of `len` elements.
    pub fn array_of(&mut self, of: Type, len: u64) -> Type {
        let array = ArrayType { of, len };
        let next = ArrayId(self.arrays.len() as u32);
        let id = *self.array_ids.entry(array).or_insert(next);
        if id == next {
            self.arrays.push(array);
        }
        Type::Array(id)
    }

    /// Adds a record; incomplete ones get their fields from [`Types::complete_record`].
    pub fn new_record(&mut self, record: Record) -> RecordId {
        self.records.push(record);
        RecordId(self.records.len() as u32 - 1)
    }

    /// Gives an incomplete record its fields and layout.
    pub fn complete_record(&mut self, id: RecordId, record: Record) {
        self.records[id.0 as usize] = record;
    }

    /// Returns the bytes of a value in memory, including padding; 1 for `void`, the unit of `sizeof` for pointers to it.
    pub fn size(&self, ty: Type) -> u64 {
        match ty {
            Type::Void => 1,
            Type::Scalar(s) | Type::Atomic(s) => s.size(),
            Type::Vector(s, 3) => s.size() * 4,
            Type::Vector(s, n) => s.size() * u64::from(n),
            Type::Pointer(_) | Type::Event => 8,
            Type::Image(..) => 32,
            Type::Sampler => 4,
            Type::Array(id) => {
                let a = self.array(id);
                self.size(a.of).saturating_mul(a.len)
            }
            Type::Record(id) => self.record(id).size,
        }
    }

    /// Natural alignment in bytes.
    pub fn align(&self, ty: Type) -> u64 {
        match ty {
            Type::Array(id) => self.align(self.array(id).of),
            Type::Record(id) => self.record(id).align.max(1),
            Type::Image(..) => 8,
            other => self.size(other),
        }
    }
}
