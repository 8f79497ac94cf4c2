//! Constrained decoding with a JSON schema, a grammar or a regular expression: tokens that would violate it are not chosen.
//!
//! The parser is llguidance. Unsupported constructs in a schema or a grammar are errors and are never ignored.

mod overlap;

use crate::tokenizer::{TokenKind, Tokenizer};
use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory, TokenParser};
use netcl_tensor::{Error, Result};
use serde_json::{Value, json};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// The keyword for llguidance's own options of a schema.
const OPTIONS: &str = "x-guidance";
/// White space between two parts of JSON: without a bound, a model may generate it forever.
const WHITE_SPACE: &str = r"[ ]|\n[ \t]{0,20}";

/// Maximum number of states of the automaton that reads tokens, each of 1 to 2 kB. A sequence that needs more of them fails.
const MAX_STATES: usize = 100_000;

/// Compiles grammars for one tokenizer: holds its tokens as a trie.
pub struct Grammars {
    factory: ParserFactory,
    stops: Arc<[u32]>,
}

/// A grammar for any number of sequences. They share the automaton, which grows during use.
pub struct Compiled {
    parser: TokenParser,
    stops: Arc<[u32]>,
}

impl Compiled {
    /// Returns the grammar state for one sequence, at its start.
    pub fn grammar(&self) -> Grammar {
        Grammar { matcher: Matcher::new(Ok(self.parser.clone())), stops: self.stops.clone(), ended: false }
    }

    /// Follows some random sequences of the grammar for a number of tokens each, to measure its cost.
    pub fn walk(&self, texts: u64, tokens: u64) {
        for text in 0..texts {
            let mut grammar = self.grammar();
            for token in 0..tokens {
                let Ok(allowed) = grammar.matcher.compute_mask() else { break };
                let all: Vec<u32> = allowed.iter().filter(|id| !self.stops.contains(id)).collect();
                let drawn = netcl_tensor::random::draw(text, 0, token)[0] as usize;
                let Some(id) = all.get(drawn % all.len().max(1)) else { break };
                if grammar.matcher.consume_token(*id).is_err() {
                    break;
                }
            }
        }
    }

    /// Returns the approximate bytes of the automaton.
    pub fn bytes(&self) -> usize {
        self.parser.parser.lexer_stats().num_bytes
    }

    /// Returns true if the automaton has reached its limit: no sequence can use it any more.
    pub fn is_spent(&self) -> bool {
        self.parser.parser.lexer_stats().error
    }
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

/// A constraint on a sequence, and its current state.
#[derive(Clone)]
pub struct Grammar {
    matcher: Matcher,
    stops: Arc<[u32]>,
    ended: bool,
}

impl Grammars {
    /// Returns a compiler for `tokenizer`.
    ///
    /// # Errors
    /// `Format` if the tokenizer does not have an end token.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self> {
        let end = tokenizer.eos().or(tokenizer.stops().first().copied());
        let vocab = tokenizer.vocab_size() as u32;
        let Some(end) = end.filter(|id| *id < vocab) else {
            return Err(Error::format(
                "a grammar requires a token that ends a text, which the tokenizer lacks",
            ));
        };
        let word = |id| {
            let piece = tokenizer.piece(id)?;
            // Names of control tokens are not text; a mark that cannot start UTF-8 distinguishes them.
            Ok(match tokenizer.kind(id) {
                TokenKind::Control | TokenKind::Unknown => [&[TokTrie::SPECIAL_TOKEN_MARKER], piece].concat(),
                _ if piece.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) => Vec::new(),
                _ => piece.to_vec(),
            })
        };
        let words = (0..vocab).map(word).collect::<Result<Vec<_>>>()?;
        let stops = tokenizer.stops().iter().copied().chain([end]).collect();
        Self::of_words(&words, end, stops)
    }

    /// Returns a compiler for single-byte tokens, with additional ids without a text up to `vocab`. It suffices to check whether a grammar compiles.
    ///
    /// # Errors
    /// Same as [`new`](Self::new).
    pub fn of_bytes(vocab: usize) -> Result<Self> {
        let mut words: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
        words.resize(vocab.max(256) + 1, Vec::new());
        let end = words.len() as u32 - 1;
        Self::of_words(&words, end, Arc::new([end]))
    }

    fn of_words(words: &[Vec<u8>], end: u32, stops: Arc<[u32]>) -> Result<Self> {
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, end), words);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).map_err(|e| wrong("tokenizer", &e))?;
        factory.quiet();
        factory.limits_mut().max_lexer_states = MAX_STATES;
        Ok(Self { factory, stops })
    }

    /// Returns the grammar of a JSON schema.
    ///
    /// # Errors
    /// `Format` for an invalid schema, and for an unsupported keyword, with its name.
    pub fn json_schema(&self, schema: &Value) -> Result<Grammar> {
        self.grammar("JSON schema", TopLevelGrammar::from_json_schema(prepared(schema)?))
    }

    /// Returns a schema as a part of a [grammar](Self::lark): the right side of a rule. References are within the schema.
    ///
    /// # Errors
    /// `Format` for options that would ignore keywords. Other problems are errors of the whole grammar.
    pub fn nested(schema: &Value) -> Result<String> {
        Ok(format!("%json {}", prepared(schema)?))
    }

    /// Returns the grammar of any JSON object.
    ///
    /// # Errors
    /// None that depend on the input.
    pub fn json_object(&self) -> Result<Grammar> {
        self.json_schema(&json!({ "type": "object" }))
    }

    /// Returns a grammar in llguidance's notation, which is similar to Lark's.
    ///
    /// # Errors
    /// `Format` with the position of the problem.
    pub fn lark(&self, grammar: &str) -> Result<Grammar> {
        self.grammar("grammar", TopLevelGrammar::from_lark(grammar.to_owned()))
    }

    /// Returns the grammar of strings that a regular expression matches completely.
    ///
    /// # Errors
    /// `Format` for an expression that is invalid or has look-around.
    pub fn regex(&self, pattern: &str) -> Result<Grammar> {
        self.grammar("regular expression", TopLevelGrammar::from_regex(pattern))
    }

    /// Does the same as [`json_schema`](Self::json_schema), for many sequences.
    ///
    /// # Errors
    /// The same.
    pub fn compile_schema(&self, schema: &Value) -> Result<Compiled> {
        self.compile("JSON schema", TopLevelGrammar::from_json_schema(prepared(schema)?))
    }

    /// Does the same as [`lark`](Self::lark), for many sequences.
    ///
    /// # Errors
    /// The same.
    pub fn compile_lark(&self, grammar: &str) -> Result<Compiled> {
        self.compile("grammar", TopLevelGrammar::from_lark(grammar.to_owned()))
    }

    fn grammar(&self, what: &str, grammar: TopLevelGrammar) -> Result<Grammar> {
        self.compile(what, grammar).map(|compiled| compiled.grammar())
    }

    fn compile(&self, what: &str, grammar: TopLevelGrammar) -> Result<Compiled> {
        let (environment, limits) = (self.factory.tok_env().clone(), self.factory.limits().clone());
        let read = || GrammarInit::Serialized(grammar).to_internal(Some(environment), limits);
        let (rules, lexemes) = catch_unwind(AssertUnwindSafe(read)).map_err(|e| wrong(what, &e))?;
        if !overlap::is_bounded(lexemes.regex_builder.exprset()) {
            return Err(Error::format(format!(
                "{what}: too many regular expressions apply to one text; use fewer patterns and formats in allOf"
            )));
        }
        let init = GrammarInit::Internal(rules, lexemes);
        let mut parser = self.factory.create_parser_from_init_default(init).map_err(|e| wrong(what, &e))?;
        // Constructs that are ignored with a warning are errors here.
        if let Some(warning) = parser.grammar_warnings().first() {
            return Err(Error::format(format!("{what}: {warning}")));
        }
        let compiled = Compiled { parser, stops: self.stops.clone() };
        // Some schemas compile but allow nothing, for example one that only refers to itself.
        let mut first = compiled.grammar();
        let begins = first.is_complete().and_then(|complete| match complete {
            true => Ok(()),
            false => first.matcher.compute_mask().map(drop).map_err(|e| wrong(what, &e)),
        });
        let nothing =
            |_| Error::format(format!("{what}: no text matches it; check its references and bounds"));
        begins.map_err(nothing)?;
        Ok(compiled)
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Grammar {
    /// Sets the logits of forbidden tokens to −∞, including ids beyond the vocabulary. An end token is allowed if the text is complete.
    ///
    /// # Errors
    /// `Format` if the parser gives up, for example for a grammar with too many parses.
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<()> {
        let complete = self.is_complete()?;
        let allowed = match self.ended || self.matcher.is_stopped() {
            true => None,
            false => Some(self.matcher.compute_mask().map_err(|e| wrong("grammar", &e))?),
        };
        for (id, logit) in logits.iter_mut().enumerate() {
            let id = id as u32;
            let may = match self.stops.contains(&id) {
                true => complete,
                false => allowed.as_ref().is_some_and(|set| (id as usize) < set.len() && set.is_allowed(id)),
            };
            if !may {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// Advances by the chosen token.
    ///
    /// # Errors
    /// `Format` for a token that the grammar does not allow here.
    pub fn accept(&mut self, id: u32) -> Result<()> {
        if self.stops.contains(&id) && self.is_complete()? {
            self.ended = true;
            return Ok(());
        }
        if self.ended {
            return Err(Error::format(format!("grammar: token {id} after the end of the text")));
        }
        self.matcher.consume_token(id).map_err(|e| wrong("grammar", &e))
    }

    /// Returns true if the text may end here.
    ///
    /// # Errors
    /// `Format` if the parser gave up.
    pub fn is_complete(&mut self) -> Result<bool> {
        // llguidance treats a failed parser as stopped.
        if let Some(error) = self.matcher.get_error() {
            return Err(wrong("grammar", &error));
        }
        if self.ended || self.matcher.is_stopped() {
            return Ok(true);
        }
        self.matcher.is_accepting().map_err(|e| wrong("grammar", &e))
    }

    /// Returns true if only the end is allowed.
    pub fn is_finished(&self) -> bool {
        self.ended || (self.matcher.is_stopped() && !self.matcher.is_error())
    }
}

/// Returns a schema with options that ignore nothing and bound white space.
fn prepared(schema: &Value) -> Result<Value> {
    exact(schema)?;
    let mut schema = if *schema == Value::Bool(true) { json!({}) } else { schema.clone() };
    if let Some(fields) = schema.as_object_mut() {
        let own = fields.entry(OPTIONS).or_insert_with(|| json!({}));
        if !own.is_object() {
            return Err(Error::format(format!("JSON schema: {OPTIONS} is {own}, expected an object")));
        }
        if own.get("lenient").is_some_and(|lenient| *lenient != Value::Bool(false)) {
            return Err(Error::format(format!(
                "JSON schema: {OPTIONS}.lenient would ignore unsupported keywords"
            )));
        }
        if own.get("whitespace_pattern").is_none() && own.get("whitespace_flexible").is_none() {
            own["whitespace_pattern"] = WHITE_SPACE.into();
        }
    }
    Ok(schema)
}

/// Keywords whose value the parser reads as a 64-bit floating-point number.
const BOUNDS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// Returns true if the parser represents a number exactly; beyond 2^53 this applies only to some integers.
fn kept(value: &Value) -> bool {
    let whole = value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
    whole.is_none_or(|whole| whole as f64 as i128 == whole)
}

fn not_kept(key: &str, value: &Value) -> Error {
    Error::format(format!(
        "JSON schema: {key} is {value}, but integers beyond 2^53 lose precision: use at most 9007199254740992, or a string with a pattern of digits"
    ))
}

/// Returns the first integer in a value that the parser does not represent exactly.
fn first_not_kept(value: &Value) -> Option<&Value> {
    match value {
        Value::Array(list) => list.iter().find_map(first_not_kept),
        Value::Object(fields) => fields.values().find_map(first_not_kept),
        _ => (!kept(value)).then_some(value),
    }
}

/// Returns true if all integers of a schema are exact: bounds and constants.
fn exact(schema: &Value) -> Result<()> {
    let mut left = vec![schema];
    while let Some(schema) = left.pop() {
        let fields = match schema {
            Value::Array(list) => {
                left.extend(list);
                continue;
            }
            Value::Object(fields) => fields,
            _ => continue,
        };
        for (key, value) in fields {
            match key.as_str() {
                "default" | "examples" => {}
                "enum" | "const" => {
                    if let Some(found) = first_not_kept(value) {
                        return Err(not_kept(key, found));
                    }
                }
                // The keys of these are names.
                "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" => {
                    left.extend(value.as_object().into_iter().flat_map(|all| all.values()));
                }
                key if BOUNDS.contains(&key) && !kept(value) => return Err(not_kept(key, value)),
                _ => left.push(value),
            }
        }
    }
    Ok(())
}

fn wrong(what: &str, error: &impl std::fmt::Display) -> Error {
    // After this mark the parser lists its state.
    let error = error.to_string();
    let said = error.split("<state>").next().unwrap_or_default();
    Error::format(format!("{what}: {}", said.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::Vocab;
    use netcl_tensor::random;

    /// Returns a tokenizer with the bytes, and pieces of JSON across its token boundaries.
    fn tokenizer() -> Tokenizer {
        let controls = ["</s>", "<|im_end|>"].map(|word| (word, TokenKind::Control));
        let words =
            ["{\"", "\":", "\": ", "\",", "true", "false", "12", "]}", "}}", "▁▁", "name", "é", "\"}"];
        let words = words.map(|word| (word, TokenKind::Normal));
        Tokenizer::from_vocab(&Vocab::of_bytes(&[&controls[..], &words].concat())).unwrap()
    }

    /// Generates a text from random allowed tokens; it ends as soon as possible.
    fn text(tokenizer: &Tokenizer, mut grammar: Grammar, seed: u64) -> (String, bool) {
        let mut ids = Vec::new();
        for n in 0..600 {
            // Larger than the vocabulary, the same as for a model.
            let mut logits = vec![0.0; tokenizer.vocab_size() + 9];
            grammar.mask(&mut logits).unwrap();
            let allowed: Vec<u32> = (0..logits.len() as u32).filter(|i| logits[*i as usize] == 0.0).collect();
            assert!(!allowed.is_empty() && allowed.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
            let ends: Vec<u32> =
                allowed.iter().copied().filter(|id| tokenizer.kind(*id) == TokenKind::Control).collect();
            assert!(ends.is_empty() || ends == [256, 257], "all tokens that end a text, or none: {ends:?}");
            let among = if ends.is_empty() { allowed } else { ends };
            let id = among[random::draw(seed, 0, n)[0] as usize % among.len()];
            grammar.accept(id).unwrap();
            if tokenizer.kind(id) == TokenKind::Control {
                assert!(grammar.is_finished() && grammar.accept(65).is_err());
                return (tokenizer.decode_all(&ids).unwrap(), true);
            }
            ids.push(id);
        }
        (tokenizer.decode_all(&ids).unwrap(), false)
    }

    #[test]
    fn texts_follow_their_schema() {
        let tokenizer = tokenizer();
        let grammars = Grammars::new(&tokenizer).unwrap();
        let schema = json!({
            "type": "object",
            "properties": {
                "name": { "type": "string", "maxLength": 6 },
                "kind": { "enum": ["a", "é\"", 3] },
                "size": { "type": "integer", "minimum": -20, "maximum": 300 },
                "list": { "type": "array", "items": { "$ref": "#/$defs/flag" }, "minItems": 1, "maxItems": 3 },
            },
            "required": ["name", "kind", "size", "list"],
            "additionalProperties": false,
            "$defs": { "flag": { "type": "boolean" } },
        });
        let mut whole = 0;
        for seed in 0..40 {
            let (text, ended) = text(&tokenizer, grammars.json_schema(&schema).unwrap(), seed);
            if !ended {
                continue;
            }
            whole += 1;
            let value: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(value.as_object().unwrap().len(), 4, "{text}");
            assert!(value["name"].as_str().unwrap().chars().count() <= 6, "{text}");
            assert!([json!("a"), json!("é\""), json!(3)].contains(&value["kind"]), "{text}");
            assert!((-20..=300).contains(&value["size"].as_i64().unwrap()), "{text}");
            let list = value["list"].as_array().unwrap();
            assert!((1..=3).contains(&list.len()) && list.iter().all(Value::is_boolean), "{text}");
            let gap = text.split(|c: char| !c.is_whitespace()).map(str::len).max().unwrap();
            assert!(gap <= 21, "{text:?}");
        }
        assert!(whole > 5, "{whole}");
    }

    /// A grammar forces a model that prefers white space to progress.
    #[test]
    fn white_space_ends() {
        let tokenizer = tokenizer();
        let mut grammar = Grammars::new(&tokenizer).unwrap().json_object().unwrap();
        let blank = |id: &u32| b" \n\t\r".contains(&(*id as u8)) && *id < 256;
        let mut blanks = 0;
        for _ in 0..100 {
            let mut logits = vec![0.0; tokenizer.vocab_size()];
            grammar.mask(&mut logits).unwrap();
            let allowed = |id: &u32| logits[*id as usize] == 0.0;
            let Some(id) = (0..256).filter(blank).find(allowed) else { break };
            grammar.accept(id).unwrap();
            blanks += 1;
        }
        assert!(blanks <= 21, "{blanks}");
        grammar.accept(u32::from(b'{')).unwrap();
    }

    #[test]
    fn expressions_and_grammars_hold() {
        let tokenizer = tokenizer();
        let grammars = Grammars::new(&tokenizer).unwrap();
        for seed in 0..20 {
            let (found, ended) = text(&tokenizer, grammars.regex("(true|false), [0-9]{3}").unwrap(), seed);
            let (flag, number) = found.split_once(", ").unwrap();
            assert!(ended && ["true", "false"].contains(&flag) && number.len() == 3, "{found}");
            let (found, ended) =
                text(&tokenizer, grammars.lark("start: \"<\" NAME \">\"\nNAME: /[a-c]{2}/").unwrap(), seed);
            assert!(ended && found.len() == 4 && found.starts_with('<') && found.ends_with('>'), "{found}");
        }
        let mut any = grammars.json_object().unwrap();
        let ids = tokenizer.encode("{\"name\":12}", crate::tokenizer::Specials::Plain).unwrap();
        // Without the space that this vocabulary puts before a text.
        ids.iter().skip_while(|id| **id != 258).for_each(|id| any.accept(*id).unwrap());
        assert!(any.is_complete().unwrap());
        let mut wrong = grammars.json_object().unwrap();
        assert!(wrong.accept(256).is_err() && !wrong.is_finished());
        let mut wrong = grammars.json_object().unwrap();
        assert!(wrong.accept(u32::from(b'[')).is_err() && !wrong.is_finished());
        // Nothing continues after an error.
        assert!(
            wrong.accept(256).is_err() && wrong.mask(&mut [0.0; 9]).is_err() && wrong.is_complete().is_err()
        );
    }

    #[test]
    fn large_integers_are_kept_or_refused() {
        let tokenizer = tokenizer();
        let grammars = Grammars::new(&tokenizer).unwrap();
        for schema in [
            json!({ "type": "integer", "minimum": 9_007_199_254_740_992i64 }),
            json!({ "properties": { "minimum": { "const": "9007199254740993" } }, "default": { "minimum": 9_007_199_254_740_993i64 } }),
        ] {
            grammars.json_schema(&schema).unwrap();
        }
        let schema = json!({ "const": 9_007_199_254_740_992i64 });
        let (found, _) = text(&tokenizer, grammars.json_schema(&schema).unwrap(), 1);
        assert_eq!(found.trim(), "9007199254740992");
    }

    #[test]
    fn what_is_not_known_is_an_error_with_its_name() {
        let tokenizer = tokenizer();
        let grammars = Grammars::new(&tokenizer).unwrap();
        let schemas = [
            (json!({ "type": "array", "uniqueItems": true }), "uniqueItems"),
            (json!({ "not": { "type": "string" } }), "not"),
            (json!({ "if": { "type": "string" }, "then": { "maxLength": 3 } }), "if"),
            (json!({ "type": "string", "format": "shoe-size" }), "shoe-size"),
            (json!({ "type": "object", "dependentRequired": { "a": ["b"] } }), "dependentRequired"),
            (json!({ "type": "strin" }), "strin"),
            (json!({ "$ref": "#/$defs/none" }), "none"),
            (json!({ "$ref": "https://example.com/schema" }), "example.com"),
            (json!({ "type": "integer", "minimum": 5, "maximum": 4 }), ""),
            (json!({ "uniqueItems": true, "x-guidance": { "lenient": true } }), "lenient"),
            (json!({ "type": "object", "x-guidance": 5 }), "x-guidance"),
            (
                json!({ "type": "integer", "minimum": 9_007_199_254_740_993i64 }),
                "minimum is 9007199254740993",
            ),
            (json!({ "items": { "maximum": -9_007_199_254_740_993i64 } }), "maximum"),
            (json!({ "properties": { "minimum": { "exclusiveMinimum": u64::MAX } } }), "exclusiveMinimum"),
            (json!({ "enum": ["a", [9_007_199_254_740_993i64]] }), "enum is 9007199254740993"),
            (json!({ "const": { "x": 9_007_199_254_740_993i64 } }), "const"),
            (json!({ "$ref": "#" }), "no text matches it"),
        ];
        for (schema, name) in schemas {
            let error = grammars.json_schema(&schema).err().unwrap_or_else(|| panic!("{schema}"));
            assert!(error.message().contains(name), "{schema}: {error}");
        }
        assert!(grammars.lark("start: nothing").is_err() && grammars.lark("start: (").is_err());
        assert!(grammars.regex("(").is_err() && grammars.regex("(?=a)b").is_err());
    }
}
