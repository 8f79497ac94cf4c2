//! From text to tokens.

use super::{Source, TextFile, Tokens};
use crate::tokenizer::Tokenizer;
use netcl_device::{Error, Result};

/// All tokens of `--data`, before the validation part is cut off.
#[derive(Clone, Debug)]
pub struct Corpus {
    /// For training; with validation in its tail unless `val` is there.
    pub train: Tokens,
    /// A validation part that the data brings itself.
    pub val: Option<Tokens>,
}

impl Source {
    /// The different pieces of text in order: the files, and a line break after each that does not end with one.
    /// Empty for shards.
    pub fn texts(&self) -> Result<Vec<&str>> {
        let Self::Text(files) = self else { return Ok(Vec::new()) };
        let texts = files.iter().map(TextFile::text).collect::<Result<Vec<_>>>()?;
        let last = texts.len().saturating_sub(1);
        let joined = texts.iter().enumerate().flat_map(|(i, &text)| {
            let missing = i < last && !text.ends_with('\n');
            [Some(text), missing.then_some("\n")].into_iter().flatten()
        });
        Ok(joined.collect())
    }

    /// Encodes text; between files stands the tokenizer's end-of-text token where it has one. Shards are taken as they
    /// are. `Format` for text without a tokenizer or with a character that it does not have, and for a single token.
    pub fn into_corpus(self, tokenizer: Option<&Tokenizer>) -> Result<Corpus> {
        let corpus = match self {
            Self::Shards { train, val } => Corpus { train, val },
            Self::Text(ref files) => {
                let tokenizer = tokenizer
                    .ok_or_else(|| Error::format("text needs a tokenizer; name one with --tokenizer"))?;
                Corpus { train: encode(&self, files, tokenizer)?.into(), val: None }
            }
        };
        if corpus.train.len() < 2 {
            return Err(Error::format(format!(
                "the data has {} token; there is nothing to predict, give more --data",
                corpus.train.len()
            )));
        }
        Ok(corpus)
    }
}

fn encode(source: &Source, files: &[TextFile], tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    let Some(eos) = tokenizer.eos() else {
        for text in source.texts()? {
            // Only a file can have an unknown character: a line break was in the texts that the tokenizer came from.
            let name =
                || files.iter().find(|file| file.text().is_ok_and(|other| other.as_ptr() == text.as_ptr()));
            ids.extend(tokenizer.encode(text).map_err(|e| match name() {
                Some(file) => e.context(file.path().display()),
                None => e,
            })?);
        }
        return Ok(ids);
    };
    for (i, file) in files.iter().enumerate() {
        if i > 0 {
            ids.push(eos);
        }
        ids.extend(tokenizer.encode(file.text()?).map_err(|e| e.context(file.path().display()))?);
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn open(files: &[(&str, &str)]) -> (tempfile::TempDir, Source) {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let source = Source::open(&[dir.path()]).unwrap();
        (dir, source)
    }

    #[test]
    fn files_are_joined_by_line_breaks() {
        let (_dir, source) = open(&[("b", "two"), ("a", "one\n"), ("c", "three")]);
        let texts = source.texts().unwrap();
        assert_eq!(texts.concat(), "one\ntwo\nthree");
        let tokenizer = Tokenizer::char_from_text(texts).unwrap();
        let corpus = source.into_corpus(Some(&tokenizer)).unwrap();
        assert_eq!(tokenizer.decode(&corpus.train.to_vec()).unwrap(), "one\ntwo\nthree");
    }

    #[test]
    fn an_end_token_parts_files() {
        let (_dir, source) = open(&[("a", "one"), ("b", "two")]);
        let tokenizer = Tokenizer::train_bpe(["text"], 257).unwrap();
        let ids = source.into_corpus(Some(&tokenizer)).unwrap().train.to_vec();
        assert_eq!(tokenizer.decode(&ids).unwrap(), "one<|endoftext|>two");
    }

    #[test]
    fn mistakes_are_named() {
        let tokenizer = Tokenizer::char_from_text(["abc\n"]).unwrap();
        let message =
            |files: &[(&str, &str)], tokenizer| open(files).1.into_corpus(tokenizer).unwrap_err().to_string();
        assert!(message(&[("a", "a")], Some(&tokenizer)).contains("the data has 1 token;"));
        assert!(message(&[("a", "ab")], None).contains("--tokenizer"));
        let unknown = message(&[("a", "abc"), ("b", "axb")], Some(&tokenizer));
        assert!(unknown.contains("/b: character 'x' (U+0078) at position 1"), "{unknown}");
    }
}
