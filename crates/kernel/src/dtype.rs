//! Storage types, for all crates. Arithmetic of floats is always f32; integers are indices, counts and masks.
//!
//! External names of the types are defined where they are used: safetensors names in `netcl_model::checkpoint`, codes of tensor maps in
//! [`vendors::nvidia`](crate::vendors::nvidia).

use half::{bf16, f16};
use serde::Serialize;
use std::fmt;

/// Storage type of elements, with the numbers that kernels use (`DTYPE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// 32-bit float.
    F32 = 0,
    /// 16-bit float (IEEE binary16).
    F16 = 1,
    /// bfloat16: the upper half of an f32.
    Bf16 = 2,
    /// Signed 32-bit integer.
    I32 = 3,
    /// Unsigned 32-bit integer.
    U32 = 4,
    /// A mask: a byte, 0 or 1. Kernels treat any other nonzero byte as 1.
    Bool = 5,
}

impl DType {
    /// The types gradients can flow through.
    pub const FLOATS: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// Returns the bytes per element.
    pub fn size(self) -> usize {
        match self {
            Self::Bool => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
        }
    }
    /// Returns true for the types in [`DType::FLOATS`].
    pub fn is_float(self) -> bool {
        Self::FLOATS.contains(&self)
    }
    /// Returns the number that kernels use (`DTYPE`).
    pub fn code(self) -> i64 {
        self as i64
    }
    /// Returns the OpenCL C type that an element is loaded as; bf16 does not have an OpenCL C type.
    pub fn c_type(self) -> &'static str {
        match self {
            Self::F32 => "float",
            Self::F16 => "half",
            Self::Bf16 => "ushort",
            Self::I32 => "int",
            Self::U32 => "uint",
            Self::Bool => "uchar",
        }
    }
    /// Parses any common name, case-insensitively: `f32`, `float32`, `fp32`, `torch.bfloat16`, `half`, … All names are defined here.
    pub fn parse(name: &str) -> Option<Self> {
        let name = name.trim().to_ascii_lowercase();
        let bare = ["torch.", "np.", "numpy.", "jnp."].iter().find_map(|library| name.strip_prefix(library));
        Some(match bare.unwrap_or(&name) {
            "f32" | "float32" | "float" | "fp32" | "single" => Self::F32,
            "f16" | "float16" | "half" | "fp16" => Self::F16,
            "bf16" | "bfloat16" | "bfloat" => Self::Bf16,
            "i32" | "int32" | "int" => Self::I32,
            "u32" | "uint32" | "uint" => Self::U32,
            "bool" | "bool_" | "mask" => Self::Bool,
            _ => return None,
        })
    }
    /// Returns the value nearest to `value` that this type can store.
    pub fn round(self, value: f64) -> f64 {
        match self {
            Self::F32 => f64::from(value as f32),
            Self::F16 => f16::from_f64(value).to_f64(),
            // Round through f32, the same as kernels.
            Self::Bf16 => f64::from(bf16::from_f32(value as f32).to_f32()),
            Self::I32 | Self::U32 => value.round(),
            Self::Bool => f64::from(value != 0.0),
        }
    }
    /// Returns the distance from 1 to the next larger value.
    pub fn epsilon(self) -> f64 {
        match self {
            Self::F32 => f64::from(f32::EPSILON),
            Self::F16 => f64::from(f16::EPSILON),
            Self::Bf16 => f64::from(bf16::EPSILON),
            Self::I32 | Self::U32 | Self::Bool => 0.0,
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
            Self::Bool => "bool",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_each_others() {
        let all = [DType::F32, DType::F16, DType::Bf16, DType::I32, DType::U32, DType::Bool];
        for (code, dtype) in all.into_iter().enumerate() {
            // The numbers in kernel sources: prelude.cl.
            assert_eq!(dtype.code(), code as i64);
            assert_eq!(DType::parse(&dtype.to_string()), Some(dtype));
            assert_eq!(serde_json::to_string(&dtype).unwrap(), format!("\"{dtype}\""));
        }
        assert_eq!(DType::parse("f64"), None);
        assert_eq!((DType::Bool.size(), DType::Bool.c_type()), (1, "uchar"));
    }

    #[test]
    fn types_are_rounded_to_what_they_store() {
        assert_eq!(DType::Bf16.round(1.0 + DType::Bf16.epsilon() / 4.0), 1.0);
        assert_eq!(DType::F16.round(65_519.0), 65_504.0);
        assert_eq!(DType::F32.round(0.1), f64::from(0.1f32));
    }
}
