//! Storage types. Arithmetic is always f32; integers are indices and masks.

use half::{bf16, f16};
use netcl_kernel::generate::Storage;
use std::fmt;

/// How elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit float.
    F32,
    /// 16-bit float (IEEE binary16).
    F16,
    /// bfloat16: the upper half of an f32.
    Bf16,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
}

impl DType {
    /// The types gradients can flow through.
    pub const FLOATS: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// Bytes an element.
    pub fn size(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
        }
    }
    /// Whether it is one of [`DType::FLOATS`].
    pub fn is_float(self) -> bool {
        Self::FLOATS.contains(&self)
    }
    /// The number kernels know it by (`DTYPE`).
    pub fn code(self) -> i64 {
        self.storage() as i64
    }
    /// The same for generated kernels.
    pub fn storage(self) -> Storage {
        match self {
            Self::F32 => Storage::F32,
            Self::F16 => Storage::F16,
            Self::Bf16 => Storage::Bf16,
            Self::I32 => Storage::I32,
            Self::U32 => Storage::U32,
        }
    }
    /// Name in safetensors files.
    pub fn safetensors_name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::I32 => "I32",
            Self::U32 => "U32",
        }
    }
    /// By any common name, in capitals or not: `f32`, `float32`, `fp32`, `torch.bfloat16`, `half`, … The one place that knows them.
    pub fn parse(name: &str) -> Option<Self> {
        let name = name.trim().to_ascii_lowercase();
        let bare = ["torch.", "np.", "numpy.", "jnp."].iter().find_map(|library| name.strip_prefix(library));
        Some(match bare.unwrap_or(&name) {
            "f32" | "float32" | "float" | "fp32" | "single" => Self::F32,
            "f16" | "float16" | "half" | "fp16" => Self::F16,
            "bf16" | "bfloat16" | "bfloat" => Self::Bf16,
            "i32" | "int32" | "int" => Self::I32,
            "u32" | "uint32" | "uint" => Self::U32,
            _ => return None,
        })
    }
    /// The value nearest to `value` that this type stores.
    pub fn round(self, value: f64) -> f64 {
        match self {
            Self::F32 => f64::from(value as f32),
            Self::F16 => f16::from_f64(value).to_f64(),
            // Through f32, as kernels do.
            Self::Bf16 => f64::from(bf16::from_f32(value as f32).to_f32()),
            Self::I32 | Self::U32 => value.round(),
        }
    }
    /// Distance from 1 to the next larger value.
    pub fn epsilon(self) -> f64 {
        match self {
            Self::F32 => f64::from(f32::EPSILON),
            Self::F16 => f64::from(f16::EPSILON),
            Self::Bf16 => f64::from(bf16::EPSILON),
            Self::I32 | Self::U32 => 0.0,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
            Self::U32 => "u32",
        })
    }
}
