//! GGUF files: llama.cpp's model format. [`Gguf`] reads versions 2 and 3, memory-mapped, split or whole; [`Plan`] writes version 3.

mod cursor;
mod part;
mod read;
#[cfg(test)]
mod tests;
mod value;
mod write;

pub use part::Tensor;
pub use read::Gguf;
pub use value::{Array, Kind, Value};
pub use write::{Meta, Plan, TensorToWrite};
