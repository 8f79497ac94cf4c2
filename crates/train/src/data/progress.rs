//! Progress of reading data, with the possibility to stop.

use netcl_device::{Error, ErrorKind, Result};

/// Stages of reading the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Files are scanned: type, encoding, and whether their tokens are cached.
    Reading,
    /// The characters of a character tokenizer are collected.
    Characters,
    /// The words for training a tokenizer are counted.
    Words,
    /// Text is encoded.
    Tokenizing,
    /// Cached tokens of an earlier run are verified.
    Cached,
    /// Kernels of the first step are compiled; counts programs instead of bytes.
    Kernels,
    /// The data is read and the model is created.
    Done,
}

impl Stage {
    /// Returns the short name.
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

/// State of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataProgress {
    /// Current stage.
    pub stage: Stage,
    /// Bytes processed.
    pub done: u64,
    /// Bytes of all files.
    pub total: u64,
    /// Tokens so far.
    pub tokens: u64,
}

/// Callback that receives the progress and returns whether to continue.
pub type DataWatch<'a> = dyn FnMut(&DataProgress) -> bool + Send + 'a;

/// Counters for a [`DataWatch`].
pub(crate) struct DataWatcher<'a> {
    watch: &'a mut DataWatch<'a>,
    pub state: DataProgress,
}

impl<'a> DataWatcher<'a> {
    pub fn new(watch: &'a mut DataWatch<'a>, stage: Stage, total: u64) -> Self {
        Self { watch, state: DataProgress { stage, done: 0, total, tokens: 0 } }
    }

    /// Reports the number of compiled programs; returns whether to continue.
    pub fn compiled(&mut self, done: usize, all: usize) -> bool {
        (self.state.done, self.state.total) = (done as u64, all as u64);
        (self.watch)(&self.state)
    }

    /// Adds processed bytes of this stage.
    pub fn read(&mut self, bytes: u64) -> Result<()> {
        self.state.done += bytes;
        self.tell()
    }

    /// Calls the callback; returns an error if it returns false.
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

/// Reports that everything was read, before anything is written; returns an error if the callback returns false.
pub(crate) fn done(watch: &mut DataWatch<'_>) -> Result<()> {
    DataWatcher::new(watch, Stage::Done, 0).tell()
}
