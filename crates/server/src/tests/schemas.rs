//! Schemas that try to take the server down.

use super::client::read;
use super::{Server, Setup};
use crate::app::ServeOptions;
use crate::checker::{Checker, check_grammar};
use serde_json::{Value, json};
use std::time::Duration;

/// Runs the test below as the checker program.
pub fn checker() -> Checker {
    let arguments = ["--exact", "tests::schemas::a_process_that_checks_grammars", "--ignored", "--nocapture"];
    let program = std::env::current_exe().unwrap();
    Checker { program, arguments: arguments.map(str::to_owned).to_vec() }
}

#[test]
#[ignore = "a process that other tests start"]
fn a_process_that_checks_grammars() {
    check_grammar(std::io::stdin().lock(), std::io::stdout().lock()).unwrap();
}

fn ask(schema: &Value) -> Value {
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    let message = json!({ "role": "user", "content": "a" });
    json!({ "messages": [message], "max_tokens": 4, "response_format": format })
}

/// Returns overlapping patterns that all apply to one text.
fn patterns(n: usize) -> Value {
    let pattern = |i| json!({ "pattern": format!("a.{{{i}}}b") });
    json!({ "type": "string", "allOf": (0..n).map(pattern).collect::<Vec<_>>() })
}

/// Returns a chain of `n` references.
fn chain(n: usize) -> Value {
    let mut all = serde_json::Map::new();
    all.insert("a0".into(), json!({ "type": "string" }));
    for i in 1..n {
        all.insert(
            format!("a{i}"),
            json!({ "type": "array", "items": { "$ref": format!("#/$defs/a{}", i - 1) } }),
        );
    }
    json!({ "$defs": all, "$ref": format!("#/$defs/a{}", n - 1) })
}

/// Returns schemas that are invalid themselves.
fn hostile() -> Vec<(&'static str, Value)> {
    let sets = |i: u8| {
        let one = |j: u8| format!("[a{}]{}", char::from(b'b' + (i * 3 + j) % 24), char::from(b'b' + j));
        json!({ "pattern": format!("^({})*$", (0..8).map(one).collect::<Vec<_>>().join("|")) })
    };
    vec![
        ("40 patterns", patterns(40)),
        (
            "patterns that are cheap at first",
            json!({ "type": "string", "allOf": (0..12).map(sets).collect::<Vec<_>>() }),
        ),
        ("a long chain of references", chain(5000)),
        ("a large divisor", json!({ "type": "integer", "multipleOf": 99_999_989 })),
        ("a reference to itself", json!({ "$ref": "#" })),
        (
            "circular references",
            json!({ "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } }, "$ref": "#/$defs/a" }),
        ),
        (
            "pattern properties that overlap",
            json!({ "type": "object", "patternProperties": { "^a": {}, "b$": {} } }),
        ),
    ]
}

#[test]
fn a_hostile_schema_is_a_wrong_request() {
    let server = Server::new();
    for (name, schema) in hostile() {
        let answer = server.client.post("/v1/chat/completions", &ask(&schema));
        assert_eq!(answer.error().0, 400, "{name}: {answer:?}");
        assert!(answer.error().2.unwrap().starts_with("response_format"), "{name}");
    }
    // The same in a tool, and in the other interfaces.
    let schema = json!({ "type": "object", "properties": { "x": patterns(40) } });
    let body = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "a" }], "format": schema });
    assert_eq!(server.client.post("/api/chat", &body).status, 400);
    let format = json!({ "format": { "type": "json_schema", "name": "x", "schema": schema } });
    let answer = server.client.post("/v1/responses", &json!({ "input": "a", "text": format }));
    assert_eq!(answer.error().0, 400);
    // Other requests are still answered.
    let usual = json!({ "type": "object", "properties": { "x": { "type": "string", "pattern": "^[a-z]{1,3}$" } }, "required": ["x"], "additionalProperties": false });
    server.client.post("/v1/chat/completions", &ask(&usual)).ok();
}

#[test]
fn a_client_that_leaves_ends_the_compiling() {
    // Only the wall-clock limit ends it.
    let program = "/bin/sh".into();
    let checker = Some(Checker { program, arguments: vec!["-c".into(), "exec sleep 600".into()] });
    let options = ServeOptions { port: 0, drain: Duration::from_millis(50), ..ServeOptions::default() };
    let mut server = Server::with(Setup { checker, options, ..Setup::default() });
    let body = ask(&patterns(3)).to_string();
    let asked: Vec<_> =
        (0..20).map(|_| server.client.send("POST", "/v1/chat/completions", body.as_bytes(), "")).collect();
    let most = server.app.compilers.available_permits();
    let wait = |what: &str, done: &dyn Fn() -> bool| {
        for _ in 0..600 {
            if done() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{what} did not come");
    };
    wait("a check", &|| server.app.compilers.available_permits() == 0);
    // Waiting requests occupy no slot of the model.
    server.client.post("/v1/completions", &json!({ "prompt": "a", "max_tokens": 2 })).ok();
    drop(asked);
    wait("their end", &|| {
        server.app.compilers.available_permits() >= most && server.app.grammars.available_permits() == 32
    });
    // A request that is still waiting does not keep the server from stopping.
    let last = server.client.send("POST", "/v1/chat/completions", body.as_bytes(), "");
    wait("the last one", &|| server.app.compilers.available_permits() < most.max(1));
    server.ask_to_stop();
    server.join();
    drop(last);
}

#[test]
fn grammars_are_kept_within_a_bound_of_bytes() {
    let server = Server::new();
    let model = crate::runtime().unwrap().block_on(server.app.models.get(None)).unwrap();
    for n in 0..70 {
        let schema =
            json!({ "type": "object", "properties": { "x": { "enum": [n, "a"] } }, "required": ["x"] });
        server.client.post("/v1/chat/completions", &ask(&schema)).ok();
    }
    let bytes = model.text().unwrap().schemas.bytes();
    assert!((1..=256 << 20).contains(&bytes), "{bytes}");
}

#[test]
fn an_answer_to_a_drained_server_ends() {
    let server = Server::new();
    let answer =
        server.client.send("POST", "/v1/chat/completions", ask(&patterns(2)).to_string().as_bytes(), "");
    assert_eq!(read(answer).status, 200);
}
