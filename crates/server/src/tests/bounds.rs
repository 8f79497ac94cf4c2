//! Requests that demand too many resources, and invalid requests.

use super::client::read;
use super::{Server, Setup, TAGGED};
use crate::app::ServeOptions;
use serde_json::{Value, json};
use std::io::{Read, Write};

#[test]
fn http_1_1_without_one_host_is_a_wrong_request() {
    let server = Server::new();
    let ask = |lines: &str| {
        let mut stream = server.client.connect();
        stream.write_all(format!("GET /health {lines}Connection: close\r\n\r\n").as_bytes()).unwrap();
        read(stream).status
    };
    assert_eq!(ask("HTTP/1.1\r\n"), 400);
    assert_eq!(ask("HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n"), 400);
    assert_eq!(ask("HTTP/1.1\r\nHost: localhost, example.com\r\n"), 400);
    assert_eq!(ask("HTTP/1.0\r\nHost: localhost\r\nHost: example.com\r\n"), 400);
    assert_eq!((ask("HTTP/1.1\r\nHost: localhost\r\n"), ask("HTTP/1.0\r\n")), (200, 200));
}

#[test]
fn a_text_that_is_too_long_is_refused_before_it_is_encoded() {
    let server = Server::new();
    let long = "word and ".repeat(1_800_000);
    assert!(long.len() > 15 << 20 && long.len() < 16 << 20);
    let message = json!({ "role": "user", "content": long });
    let chat = server.client.post("/v1/chat/completions", &json!({ "messages": [message] }));
    assert_eq!(chat.error(), (400, Some("context_length_exceeded".into()), Some("messages".into())));
    for (path, body, param) in [
        ("/v1/completions", json!({ "prompt": long }), "prompt"),
        ("/v1/embeddings", json!({ "input": long }), "input"),
    ] {
        let answer = server.client.post(path, &body);
        assert_eq!(
            answer.error(),
            (400, Some("context_length_exceeded".into()), Some(param.into())),
            "{path}"
        );
    }
    for pieces in [false, true] {
        let answer = server.client.post("/tokenize", &json!({ "content": long, "with_pieces": pieces }));
        assert_eq!(answer.error(), (400, Some("invalid_value".into()), Some("content".into())));
    }
    // This body has exactly the maximum size.
    let content = "é".repeat(1 << 19);
    let made = server.client.post("/tokenize", &json!({ "content": content, "with_pieces": true })).ok();
    assert_eq!(made["tokens"].as_array().unwrap().len(), 1 << 20);
    assert_eq!(made["tokens"][1]["piece"], json!([0xa9]));
}

#[test]
fn many_values_are_refused_before_they_are_read() {
    let server = Server::new();
    let many = format!("{{\"tokens\":[{}1]}}", "1,".repeat(2 << 20));
    let answer = server.client.request("POST", "/detokenize", many.as_bytes(), "");
    assert_eq!(answer.error(), (413, Some("request_too_large".into()), None));
    let some = json!({ "tokens": vec![97; 1000] });
    assert_eq!(server.client.post("/detokenize", &some).ok()["content"].as_str().unwrap().len(), 1000);
    // Commas inside a string do not count as values.
    let text = json!({ "content": ",".repeat(1 << 20) });
    server.client.post("/tokenize", &text).ok();
}

#[test]
fn idle_connections_make_room_for_requests() {
    let options = ServeOptions { port: 0, connections: 4, ..ServeOptions::default() };
    let server = Server::with(Setup { options, ..Setup::default() });
    let idle: Vec<_> = (0..12).map(|_| server.client.connect()).collect();
    for _ in 0..3 {
        server.client.get("/health").ok();
    }
    let answer = server.client.post("/v1/completions", &json!({ "prompt": "a", "max_tokens": 4 }));
    assert_eq!(answer.status, 200);
    // A connection that is sending an answer is not idle.
    let body = json!({ "prompt": "a", "max_tokens": 200, "ignore_eos": true, "stream": true }).to_string();
    let stream = server.client.send("POST", "/v1/completions", body.as_bytes(), "");
    let more: Vec<_> = (0..12).map(|_| server.client.connect()).collect();
    server.client.get("/health").ok();
    assert!(read(stream).events().1, "the answer was cut");
    let mut first = idle.into_iter().next().unwrap();
    let mut rest = Vec::new();
    assert!(first.read_to_end(&mut rest).is_ok() && rest.is_empty(), "the oldest idle connection was kept");
    drop(more);
}

#[test]
fn a_request_that_leaves_no_token_is_at_fault_itself() {
    let server = Server::new();
    let biases: serde_json::Map<String, Value> = (0..260).map(|id| (id.to_string(), json!(-100))).collect();
    let answer = server.client.post("/v1/completions", &json!({ "prompt": "a", "logit_bias": biases }));
    assert_eq!(answer.error().0, 400, "{answer:?}");
    let properties: serde_json::Map<String, Value> =
        (0..900).map(|n| (format!("p{n}"), json!({ "type": "string" }))).collect();
    let schema = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    let body = json!({ "messages": [{ "role": "user", "content": "a" }], "response_format": format, "max_tokens": 3 });
    let status = server.client.post("/v1/chat/completions", &body).status;
    assert!([200, 400].contains(&status), "{status}");
    assert_eq!(
        server.client.get("/device/data").ok()["requests"]["errors"].as_u64().map(|n| n <= 2),
        Some(true)
    );
}

#[test]
fn a_defect_ends_the_answers_and_not_the_model() {
    let server = Server::new();
    let model = crate::runtime().unwrap().block_on(server.app.models.get(None)).unwrap();
    let body = json!({ "prompt": "a", "max_tokens": 250, "ignore_eos": true, "n": 16 }).to_string();
    for _ in 0..2 {
        let running = server.client.send("POST", "/v1/completions", body.as_bytes(), "");
        server.wait("the answers", |data| data["engine"]["running"].as_u64() > Some(0));
        model.inject_panic();
        assert_eq!(read(running).error().0, 500);
        server.client.post("/v1/completions", &json!({ "prompt": "a", "max_tokens": 3 })).ok();
        server.client.post("/v1/embeddings", &json!({ "input": "a" })).ok();
    }
    assert!(model.is_alive());
}

#[test]
fn fields_of_messages_are_known_or_refused() {
    let server = Server::with(Setup { template: TAGGED, ..Setup::default() });
    let chat = |message: Value| {
        let answer =
            server.client.post("/v1/chat/completions", &json!({ "messages": [message], "max_tokens": 1 }));
        (answer.status, (answer.status != 200).then(|| answer.error().2.unwrap()))
    };
    let user = |key: &str, value: Value| {
        let mut message = json!({ "role": "user", "content": "a" });
        message[key] = value;
        chat(message)
    };
    assert_eq!(user("name", json!("b")), (200, None));
    assert_eq!(user("refusal", json!(null)), (200, None));
    assert_eq!(user("annotations", json!([])), (200, None));
    // The template uses it.
    assert_eq!(user("function", json!("f")), (200, None));
    for key in ["images", "audio", "frobnicate", "function_call"] {
        assert_eq!(user(key, json!(["x"])), (400, Some(format!("messages[0].{key}"))));
    }
    let part = json!({ "type": "text", "text": "a", "cache_control": { "type": "ephemeral" } });
    assert_eq!(
        chat(json!({ "role": "user", "content": [part] })),
        (400, Some("messages[0].content[0].cache_control".into()))
    );
    let call =
        json!({ "id": "1", "type": "function", "function": { "name": "f", "arguments": "{}", "extra": 1 } });
    assert_eq!(
        chat(json!({ "role": "assistant", "content": "", "tool_calls": [call] })),
        (400, Some("messages[0].tool_calls[0].function.extra".into()))
    );
    // Send the same to Ollama's interface.
    let ollama = |message: Value| {
        server.client.post("/api/chat", &json!({ "model": "tiny", "stream": false, "messages": [message], "options": { "num_predict": 1 } }))
    };
    assert_eq!(ollama(json!({ "role": "user", "content": "a", "images": ["aGk="] })).status, 400);
    assert_eq!(ollama(json!({ "role": "user", "content": "a", "images": [] })).status, 200);
    assert_eq!(ollama(json!({ "role": "assistant", "content": "a", "thinking": "b" })).status, 200);
    // Send items of the responses interface.
    let item = json!({ "type": "message", "role": "user", "content": "a", "frobnicate": 1 });
    let answer = server.client.post("/v1/responses", &json!({ "input": [item] }));
    assert_eq!(answer.error().2.as_deref(), Some("input[0].frobnicate"));
}

#[test]
fn penalties_of_openai_count_the_answer_alone() {
    let server = Server::new();
    let text = |path: &str, body: &Value| server.client.post(path, body).ok();
    let ask = |frequency: f64| {
        let body = json!({ "prompt": "abcabcabc", "max_tokens": 1, "temperature": 0, "ignore_eos": true, "logprobs": 5,
                           "frequency_penalty": frequency, "presence_penalty": frequency, "seed": 1 });
        text("/v1/completions", &body)["choices"][0]["text"].clone()
    };
    // The first token of an answer does not have a predecessor.
    assert_eq!(ask(0.0), ask(2.0));
    // The whole answer counts, regardless of its length.
    let whole = |frequency: f64| {
        let body = json!({ "prompt": "abcabcabc", "max_tokens": 100, "temperature": 0, "ignore_eos": true, "frequency_penalty": frequency });
        text("/v1/completions", &body)["choices"][0]["text"].clone()
    };
    assert_ne!(whole(0.0), whole(2.0));
}
