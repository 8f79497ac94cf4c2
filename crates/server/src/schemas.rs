//! Compiled grammars of schemas: recently used ones are cached, within a memory limit.

use crate::checker::{Checker, Patience, Source, is_plain};
use crate::error::{ApiError, ApiResult};
use netcl::llm::Tokenizer;
use netcl::llm::grammar::{Compiled, Grammar, Grammars};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Maximum number of cached grammars.
const MAX_CACHED_GRAMMARS: usize = 64;
/// Maximum bytes of the cached grammars, each with the current size of its automaton.
const KEPT_BYTES: usize = 256 << 20;
/// Number of rejected sources whose errors are cached.
const REFUSED: usize = 256;

/// Compiles grammars for one tokenizer.
pub struct Schemas {
    tokenizer: Arc<Tokenizer>,
    checker: Option<Checker>,
    grammars: OnceLock<netcl::device::Result<Grammars>>,
    kept: Mutex<CachedGrammar>,
}

#[derive(Default)]
struct CachedGrammar {
    /// Least recently used first.
    grammars: VecDeque<Entry>,
    /// Hashes of rejected sources, each with the error.
    refused: VecDeque<(blake3::Hash, ApiError)>,
}

struct Entry {
    source: String,
    compiled: Arc<Compiled>,
    /// Bytes that the compilation took.
    bytes: usize,
}

impl Entry {
    fn bytes(&self) -> usize {
        self.bytes.max(self.compiled.bytes()) + self.source.len()
    }
}

impl CachedGrammar {
    /// Finds a cached grammar and marks it as the most recently used.
    fn find(&mut self, source: &str) -> Option<Grammar> {
        // Generated text has driven their automata to the limit, so no other sequence can use them.
        self.grammars.retain(|entry| !entry.compiled.is_spent());
        let at = self.grammars.iter().position(|entry| entry.source == source)?;
        let entry = self.grammars.remove(at)?;
        let grammar = entry.compiled.grammar();
        self.grammars.push_back(entry);
        Some(grammar)
    }

    fn keep(&mut self, entry: Entry) {
        self.grammars.push_back(entry);
        let mut all: usize = self.grammars.iter().map(Entry::bytes).sum();
        while self.grammars.len() > MAX_CACHED_GRAMMARS || all > KEPT_BYTES {
            let Some(gone) = self.grammars.pop_front() else { return };
            all = all.saturating_sub(gone.bytes());
        }
    }

    fn refuse(&mut self, hash: blake3::Hash, error: ApiError) {
        self.refused.push_back((hash, error));
        if self.refused.len() > REFUSED {
            self.refused.pop_front();
        }
    }
}

impl Schemas {
    /// Returns an empty cache. The tokens are sorted for the first schema. Schemas that may be expensive first go through `checker`.
    pub fn new(tokenizer: Arc<Tokenizer>, checker: Option<Checker>) -> Self {
        Self { tokenizer, checker, grammars: OnceLock::new(), kept: Mutex::default() }
    }

    /// Returns the compiler for a request with a time limit.
    pub fn compiler<'a>(&'a self, patience: &'a Patience) -> Compiler<'a> {
        Compiler { schemas: self, patience }
    }

    /// Returns the bytes of the cached grammars.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.grammars.iter().map(Entry::bytes).sum()
    }
}

/// Compiles the grammars of one request.
#[derive(Clone, Copy)]
pub struct Compiler<'a> {
    schemas: &'a Schemas,
    patience: &'a Patience,
}

impl Compiler<'_> {
    /// Returns the grammar of any JSON object.
    ///
    /// # Errors
    /// 400 for a tokenizer that no grammar supports.
    pub fn object(&self) -> ApiResult<Grammar> {
        self.schema(&json!({ "type": "object" }), "response_format")
    }

    /// Returns the grammar of a schema; `param` is its position in the request.
    ///
    /// # Errors
    /// 400 for a schema that is invalid, has a keyword that cannot be enforced (named in the message), or takes too long to compile.
    pub fn schema(&self, schema: &Value, param: &str) -> ApiResult<Grammar> {
        self.kept(schema.to_string(), Source::Schema(schema), param)
    }

    /// Returns a grammar generated from a request's fields; `param` is the related field.
    ///
    /// # Errors
    /// 400 if the grammar's parser rejects it.
    pub fn lark(&self, grammar: &str, param: &str) -> ApiResult<Grammar> {
        self.kept(grammar.to_owned(), Source::Lark(grammar), param)
    }

    fn kept(&self, source: String, what: Source<'_>, param: &str) -> ApiResult<Grammar> {
        let lock = || self.schemas.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let hash = blake3::hash(format!("{param}\n{source}").as_bytes());
        {
            let mut kept = lock();
            if let Some(grammar) = kept.find(&source) {
                return Ok(grammar);
            }
            if let Some((_, error)) = kept.refused.iter().find(|(known, _)| *known == hash) {
                return Err(error.clone());
            }
        }
        match self.compile(what, param) {
            Ok((compiled, bytes)) => {
                let grammar = compiled.grammar();
                lock().keep(Entry { source, compiled: Arc::new(compiled), bytes });
                Ok(grammar)
            }
            Err(error) => {
                // A request without time left says nothing about the schema.
                if error.status == axum::http::StatusCode::BAD_REQUEST && !self.patience.is_over() {
                    lock().refuse(hash, error.clone());
                }
                Err(error)
            }
        }
    }

    fn compile(&self, what: Source<'_>, param: &str) -> ApiResult<(Compiled, usize)> {
        let plain = matches!(what, Source::Schema(schema) if is_plain(schema));
        let bytes = match &self.schemas.checker {
            Some(checker) if !plain => {
                let vocab = self.schemas.tokenizer.vocab_size();
                checker.check(what, vocab, param, self.patience)?
            }
            _ => 0,
        };
        let grammars = self.schemas.grammars.get_or_init(|| Grammars::new(&self.schemas.tokenizer));
        let grammars = grammars.as_ref().map_err(|e| ApiError::of_field(param, e))?;
        let make = || match what {
            Source::Schema(schema) => grammars.compile_schema(schema),
            Source::Lark(text) => grammars.compile_lark(text),
        };
        let made = netcl::device::guarded("the grammar", make).and_then(|made| made);
        Ok((made.map_err(|e| ApiError::of_field(param, &e))?, bytes))
    }
}

/// The constraint on an answer.
#[derive(Clone, Debug, Default)]
pub enum Format {
    /// No constraint.
    #[default]
    Text,
    /// Any JSON object.
    Object,
    /// A schema, and the name of its field.
    Schema(Value, String),
}

impl Format {
    /// Returns its grammar.
    ///
    /// # Errors
    /// 400 for a schema that is invalid or has a keyword that cannot be enforced.
    pub fn grammar(&self, compiler: Compiler<'_>) -> ApiResult<Option<Grammar>> {
        match self {
            Self::Text => Ok(None),
            Self::Object => compiler.object().map(Some),
            Self::Schema(schema, param) => compiler.schema(schema, param).map(Some),
        }
    }
}
