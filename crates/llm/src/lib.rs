//! Inference of language models that others trained: their files, tokenizers, chat templates and samplers. Tokens in, tokens out.
#![forbid(unsafe_code)]

pub mod gguf;
pub mod model;
