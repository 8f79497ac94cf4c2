use crate::gguf::Gguf;
use crate::tokenizer::Vocab;
use std::path::Path;

pub fn vocab(path: &Path) -> Vocab {
    Vocab::from_gguf(&Gguf::open(path).unwrap()).unwrap()
}
