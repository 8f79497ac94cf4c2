//! How far the reading of data is, and whether to go on.

use netcl_device::{Error, ErrorKind, Result};

/// What is being done to the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Files are looked through: what they are, and whether their tokens are known.
    Reading,
    /// The characters of a character tokenizer are collected.
    Characters,
    /// The words that a tokenizer is trained on are counted.
    Words,
    /// Text becomes tokens.
    Tokenizing,
    /// Tokens of an earlier run are checked.
    Cached,
    /// Kernels of the first step are compiled: programs are counted, not bytes.
    Kernels,
    /// All is read and the model is made.
    Done,
}

impl Stage {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reading => "reading",
            Self::Characters => "collecting characters",
            Self::Words => "counting words",
            Self::Tokenizing => "tokenizing",
            Self::Cached => "checking cached tokens",
            Self::Kernels => "compiling kernels",
            Self::Done => "training on",
        }
    }
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub stage: Stage,
    /// Bytes of the files that are done.
    pub done: u64,
    /// Bytes of all files.
    pub total: u64,
    /// Tokens so far.
    pub tokens: u64,
}

/// Hears how far it is, and answers whether to go on.
pub type Watch<'a> = dyn FnMut(&Progress) -> bool + Send + 'a;

/// Counts for a [`Watch`].
pub(crate) struct Watcher<'a> {
    watch: &'a mut Watch<'a>,
    pub state: Progress,
}

impl<'a> Watcher<'a> {
    pub fn new(watch: &'a mut Watch<'a>, stage: Stage, total: u64) -> Self {
        Self { watch, state: Progress { stage, done: 0, total, tokens: 0 } }
    }

    /// So many of this stage's programs are compiled; whether to go on.
    pub fn compiled(&mut self, done: usize, all: usize) -> bool {
        (self.state.done, self.state.total) = (done as u64, all as u64);
        (self.watch)(&self.state)
    }

    /// `bytes` more of this stage are done.
    pub fn read(&mut self, bytes: u64) -> Result<()> {
        self.state.done += bytes;
        self.tell()
    }

    /// Tells, and fails when the answer is to stop.
    pub fn tell(&mut self) -> Result<()> {
        if (self.watch)(&self.state) {
            return Ok(());
        }
        let doing = match self.state.stage {
            Stage::Done => "before training on the data".to_owned(),
            Stage::Kernels => format!("while {}", self.state.stage.name()),
            stage => format!("while {} the data", stage.name()),
        };
        Err(Error::new(ErrorKind::Io, format!("stopped {doing}; nothing was written")))
    }
}

/// Says that all is read and the next moment writes something; fails when the answer is to stop.
pub(crate) fn done(watch: &mut Watch<'_>) -> Result<()> {
    Watcher::new(watch, Stage::Done, 0).tell()
}
