//! Runs JSON-Schema-Test-Suite, draft 2020-12, against the grammars of schemas. An invalid instance must be rejected, or the schema must be rejected
//! with the name of a keyword. `NETCL_JSON_SCHEMA_SUITE` names the suite's folder, `tests/draft2020-12` of
//! github.com/json-schema-org/JSON-Schema-Test-Suite. The test prints a table to stdout.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)] // helpers of tests

use netcl::llm::grammar::Grammars;
use netcl::llm::tokenizer::{TokenKind, Tokenizer, Vocab};
use serde_json::Value;
use std::path::Path;

/// Returns a tokenizer with the bytes and an end token.
fn tokenizer() -> Tokenizer {
    Tokenizer::from_vocab(&Vocab::of_bytes(&[("</s>", TokenKind::Control)])).unwrap()
}

/// Results of a file's cases.
#[derive(Default)]
struct Count {
    /// Number of accepted schemas, and of schemas rejected with a keyword name.
    taken: usize,
    refused: Vec<String>,
    /// Number of valid instances that a text can match, and of those that none can: other key orders, other number formats.
    valid: usize,
    narrower: usize,
    /// Number of invalid instances that no text can match, and of those that one can.
    invalid: usize,
    wrong: Vec<String>,
}

/// Returns true if an error names its keyword, or says that no value matches.
fn is_named(message: &str, schema: &Value) -> bool {
    let mut keys = Vec::new();
    all_keys(schema, &mut keys);
    let named =
        |key: &&str| message.contains(*key) || message.contains(&key.replace("Properties", "Property"));
    message.contains("Unsatisfiable") || keys.iter().any(named)
}

fn all_keys<'a>(schema: &'a Value, out: &mut Vec<&'a str>) {
    match schema {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            out.push(key);
            all_keys(value, out);
        }),
        Value::Array(list) => list.iter().for_each(|value| all_keys(value, out)),
        _ => {}
    }
}

fn run(grammars: &Grammars, file: &Path, count: &mut Count) {
    let groups: Vec<Value> = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    for group in &groups {
        let schema = &group["schema"];
        let grammar = match grammars.json_schema(schema) {
            Ok(grammar) => grammar,
            Err(error) => {
                assert!(is_named(error.message(), schema), "{schema}: {error}");
                count.refused.push(error.message().to_owned());
                continue;
            }
        };
        count.taken += 1;
        for case in group["tests"].as_array().unwrap() {
            let mut grammar = grammar.clone();
            let text = case["data"].to_string();
            let fits =
                text.bytes().all(|b| grammar.accept(u32::from(b)).is_ok()) && grammar.is_complete().unwrap();
            match (case["valid"].as_bool().unwrap(), fits) {
                (true, true) => count.valid += 1,
                (true, false) => count.narrower += 1,
                (false, false) => count.invalid += 1,
                (false, true) => {
                    count.wrong.push(format!("{}: {} takes {text}", group["description"], schema))
                }
            }
        }
    }
}

#[test]
fn every_keyword_is_enforced_or_refused_by_name() {
    let Ok(folder) = std::env::var("NETCL_JSON_SCHEMA_SUITE") else {
        println!("skipped: NETCL_JSON_SCHEMA_SUITE does not name a folder with the suite");
        return;
    };
    let tokenizer = tokenizer();
    let grammars = Grammars::new(&tokenizer).unwrap();
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "json"));
    files.sort();
    assert!(files.len() > 30, "{} files", files.len());
    println!(
        "| keyword | schemas taken | refused | valid, taken | valid, refused | invalid, refused | invalid, taken | refused for |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    let mut wrong = Vec::new();
    for file in &files {
        let mut count = Count::default();
        run(&grammars, file, &mut count);
        let mut why: Vec<&str> = count.refused.iter().map(String::as_str).collect();
        why.sort_unstable();
        why.dedup();
        let name = file.file_stem().unwrap().to_str().unwrap();
        let Count { taken, refused, valid, narrower, invalid, .. } = &count;
        println!(
            "| {name} | {taken} | {} | {valid} | {narrower} | {invalid} | {} | {} |",
            refused.len(),
            count.wrong.len(),
            why.join("; ")
        );
        wrong.extend(count.wrong.into_iter().map(|what| format!("{name}: {what}")));
    }
    wrong.iter().for_each(|what| println!("{what}"));
    assert!(wrong.is_empty(), "{} invalid instances are accepted", wrong.len());
}
