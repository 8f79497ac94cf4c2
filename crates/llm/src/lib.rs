//! Inference of pretrained language models: files, tokenizers, chat templates and samplers. Tokens in, tokens out.
#![forbid(unsafe_code)]

pub mod answers;
pub mod certificate;
pub mod engine;
pub mod gguf;
#[cfg(feature = "grammar")]
pub mod grammar;
pub mod model;
pub mod sampler;
pub mod template;
pub mod tokenizer;
mod utf8;

pub use engine::{Engine, LoadedModel};
pub use tokenizer::Tokenizer;
pub use utf8::Utf8Buffer;
