//! `netcl tokenizer`: trains a tokenizer, and applies one from the shell.

use crate::context::Context;
use crate::out;
use crate::reading::ReadingBar;
use netcl::device::check_writable;
use netcl::model::decoder::model_folder;
use netcl::model::tokenizer::Tokenizer;
use netcl::prelude::*;
use netcl::train::data::{DataSource, Reading, TextEncoding};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Train a tokenizer, or turn text into token ids and back
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Train on text and write tokenizer.json and tokenizer_config.json into a folder
    Train {
        /// Text: files, folders, patterns (repeatable)
        #[arg(long, required = true, value_name = "FILE|DIR|GLOB")]
        data: Vec<PathBuf>,
        /// Encoding of files that are not UTF-8 and lack a byte order mark (latin1, cp1251, …)
        #[arg(long, value_name = "NAME")]
        encoding: Option<String>,
        /// Read record files (JSON Lines, tables) as plain text, including their markup
        #[arg(long)]
        as_text: bool,
        /// `char` for one token per character, `bpe` for byte-level pairs
        #[arg(long, value_enum, default_value_t = Kind::Bpe)]
        kind: Kind,
        /// Tokens of a bpe tokenizer, at least 257
        #[arg(long, default_value_t = 4096)]
        vocab: usize,
        /// Output folder
        #[arg(long, short, default_value = "tokenizer")]
        out: PathBuf,
    },
    /// Print the ids of a text from the argument or standard input
    Encode {
        #[command(flatten)]
        tokenizer: Named,
        /// Text
        text: Option<String>,
        /// Treat names of special tokens in the text as plain text
        #[arg(long)]
        ordinary: bool,
    },
    /// Print the text of ids from the arguments or standard input
    Decode {
        #[command(flatten)]
        tokenizer: Named,
        /// Ids, separated by spaces or commas
        ids: Vec<String>,
    },
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Kind {
    Char,
    Bpe,
}

#[derive(clap::Args)]
struct Named {
    /// A tokenizer.json, or a folder with one (a model, a checkpoint, a run)
    #[arg(long, short = 'm', value_name = "FILE|DIR")]
    tokenizer: PathBuf,
}

impl Named {
    fn open(&self) -> Result<Tokenizer> {
        if self.tokenizer.is_dir() {
            let own = self.tokenizer.join(netcl::model::tokenizer::FILE).exists();
            // In a run folder, the checkpoint contains it.
            let folder = if own { None } else { model_folder(&self.tokenizer).ok() };
            Tokenizer::from_dir(folder.as_deref().unwrap_or(&self.tokenizer))
        } else {
            Tokenizer::from_file(&self.tokenizer)
        }
    }
}

pub fn run(args: &Args, context: &Context) -> Result<()> {
    match &args.action {
        Action::Train { data, encoding, as_text, kind, vocab, out } => {
            let encoding = encoding.as_deref().map(TextEncoding::of).transpose()?;
            train(data, Reading { encoding, as_text: *as_text, records: false }, *kind, *vocab, out, context)
        }
        Action::Encode { tokenizer, text, ordinary } => {
            let text = match text {
                Some(text) => text.clone(),
                None => stdin()?,
            };
            let tokenizer = tokenizer.open()?;
            let ids = if *ordinary { tokenizer.encode_ordinary(&text) } else { tokenizer.encode(&text) }?;
            let words: Vec<String> = ids.iter().map(u32::to_string).collect();
            out::result(&words.join(" "))
        }
        Action::Decode { tokenizer, ids } => {
            let text = if ids.is_empty() { stdin()? } else { ids.join(" ") };
            out::result(&tokenizer.open()?.decode(&parse(&text)?)?)
        }
    }
}

fn train(
    data: &[PathBuf],
    how: Reading,
    kind: Kind,
    vocab: usize,
    folder: &Path,
    context: &Context,
) -> Result<()> {
    if folder.extension().is_some_and(|e| e == "json") {
        return Err(Error::format(format!(
            "--out {} names a file, expected a folder, into which the tokenizer is written as {}",
            folder.display(),
            netcl::model::tokenizer::FILE
        )));
    }
    // Checked before the work, without creating the folder, in case training fails.
    let absolute = std::path::absolute(folder).map_err(|e| Error::io("finding", folder, &e))?;
    let there = absolute.ancestors().find(|path| path.exists()).unwrap_or(folder);
    check_writable(&there.join(netcl::model::tokenizer::FILE))?;
    let mut bar = ReadingBar::new(context);
    let source = DataSource::open_with(data, how, &mut |p| bar.show(p))?;
    if source.files().is_empty() {
        return Err(Error::format("--data names token shards; train a tokenizer on text"));
    }
    let bytes = source.bytes();
    let tokenizer = match kind {
        Kind::Char => source.char_tokenizer(&mut |p| bar.show(p))?,
        Kind::Bpe => source.bpe_tokenizer(vocab, &mut |p| bar.show(p))?,
    };
    drop(bar);
    std::fs::create_dir_all(folder).map_err(|e| Error::io("creating", folder, &e))?;
    tokenizer.save(folder)?;
    out::note(&format!("{} tokens from {bytes} bytes of text", tokenizer.vocab_size()));
    out::result(&folder.join(netcl::model::tokenizer::FILE).display().to_string())
}

fn parse(text: &str) -> Result<Vec<u32>> {
    let words = text.split(|c: char| c.is_whitespace() || c == ',').filter(|w| !w.is_empty());
    words
        .map(|w| {
            w.parse().map_err(|_| {
                Error::format(format!(
                    "{w:?} is not a token id; ids are whole numbers separated by spaces or commas"
                ))
            })
        })
        .collect()
}

fn stdin() -> Result<String> {
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text);
    read.map(|_| text).map_err(|e| Error::io("reading", Path::new("standard input"), &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_parsed_and_mistakes_are_named() {
        assert_eq!(parse("1, 2\n3").unwrap(), [1, 2, 3]);
        assert!(parse("1 x").unwrap_err().to_string().contains("\"x\" is not a token id"));
        assert_eq!(parse("").unwrap(), Vec::<u32>::new());
    }
}
