//! Storage types of weights and activations: floating-point types, by any name that [`DType::parse`] accepts.

use netcl_device::Result;
use netcl_model::names::by_name;
use netcl_tensor::DType;
use serde::{Deserialize, Deserializer, de::Error as _};

/// Storage types of a model, by name. Arithmetic is f32 in all of them.
pub const DTYPES: [(&str, DType); 3] = [("f32", DType::F32), ("bf16", DType::Bf16), ("f16", DType::F16)];

/// Returns the storage type of this name.
///
/// # Errors
/// `Format` with the list of types, for an unknown name or an integer type.
pub fn storage_type(name: &str) -> Result<DType> {
    DType::parse(name).filter(|dtype| dtype.is_float()).map_or_else(|| by_name("dtype", name, &DTYPES), Ok)
}

pub(crate) fn one<'de, D: Deserializer<'de>>(from: D) -> Result<DType, D::Error> {
    let name = String::deserialize(from)?;
    storage_type(&name).map_err(|_| D::Error::unknown_variant(&name, &["f32", "bf16", "f16"]))
}

pub(super) fn maybe<'de, D: Deserializer<'de>>(from: D) -> Result<Option<DType>, D::Error> {
    one(from).map(Some)
}
