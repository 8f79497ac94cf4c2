//! Compiled grammars of schemas: those that were used lately are kept.

use crate::error::{ApiError, ApiResult};
use netcl::llm::Tokenizer;
use netcl::llm::grammar::{Grammar, Grammars};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Schemas that are kept.
const KEPT: usize = 64;

/// Makes grammars for one tokenizer.
pub struct Schemas {
    tokenizer: Arc<Tokenizer>,
    grammars: OnceLock<netcl::device::Result<Grammars>>,
    /// Texts of schemas with what they became, those used last at the end.
    kept: Mutex<VecDeque<(String, Grammar)>>,
}

impl Schemas {
    /// The tokens are sorted with the first schema.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokenizer, grammars: OnceLock::new(), kept: Mutex::default() }
    }

    /// Any JSON object.
    ///
    /// # Errors
    /// 400 for a tokenizer that no grammar can follow.
    pub fn object(&self) -> ApiResult<Grammar> {
        self.schema(&json!({ "type": "object" }), "response_format")
    }

    /// Texts that a schema describes; `param` is where it stands.
    ///
    /// # Errors
    /// 400 for a schema that is wrong, or that has a keyword that cannot be enforced, which the message names.
    pub fn schema(&self, schema: &Value, param: &str) -> ApiResult<Grammar> {
        self.kept(schema.to_string(), |grammars| grammars.json_schema(schema), param)
    }

    /// Texts of a grammar that was made of a request's fields; `param` is the one that it is about.
    ///
    /// # Errors
    /// 400 for what the grammar's parser refuses.
    pub fn lark(&self, grammar: &str, param: &str) -> ApiResult<Grammar> {
        self.kept(grammar.to_owned(), |grammars| grammars.lark(grammar), param)
    }

    fn kept(
        &self,
        key: String,
        make: impl FnOnce(&Grammars) -> netcl::device::Result<Grammar>,
        param: &str,
    ) -> ApiResult<Grammar> {
        let lock = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(grammar) = {
            let mut kept = lock();
            let at = kept.iter().position(|(known, _)| *known == key);
            at.and_then(|at| kept.remove(at)).map(|entry| {
                let grammar = entry.1.clone();
                kept.push_back(entry);
                grammar
            })
        } {
            return Ok(grammar);
        }
        let grammars = self.grammars.get_or_init(|| Grammars::new(&self.tokenizer));
        let grammars = grammars.as_ref().map_err(|e| ApiError::of_field(param, e))?;
        let made = netcl::device::guarded("the grammar", || make(grammars)).and_then(|made| made);
        let grammar = made.map_err(|e| ApiError::of_field(param, &e))?;
        let mut kept = lock();
        kept.push_back((key, grammar.clone()));
        if kept.len() > KEPT {
            kept.pop_front();
        }
        Ok(grammar)
    }
}

/// What an answer has to follow.
#[derive(Clone, Debug, Default)]
pub enum Format {
    /// Nothing.
    #[default]
    Text,
    /// Any JSON object.
    Object,
    /// A schema, and the field that it stands in.
    Schema(Value, String),
}

impl Format {
    /// Its grammar.
    ///
    /// # Errors
    /// 400 for a schema that is wrong, or has a keyword that cannot be enforced.
    pub fn grammar(&self, schemas: &Schemas) -> ApiResult<Option<Grammar>> {
        match self {
            Self::Text => Ok(None),
            Self::Object => schemas.object().map(Some),
            Self::Schema(schema, param) => schemas.schema(schema, param).map(Some),
        }
    }
}
