//! Functions over HTTP: required calls are generated and match their schemas, in complete and in streamed answers.

use super::{Server, Setup, TAGGED};
use serde_json::{Value, json};

fn body(change: Value) -> Value {
    let parameters = json!({
        "type": "object",
        "properties": { "n": { "type": "integer", "minimum": 0, "maximum": 9 }, "on": { "type": "boolean" } },
        "required": ["n", "on"], "additionalProperties": false,
    });
    let of = |name: &str| json!({ "type": "function", "function": { "name": name, "parameters": parameters, "strict": true } });
    let mut body = json!({ "messages": [{ "role": "user", "content": "a" }], "tools": [of("f"), of("g")] });
    body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    body
}

fn is_good(arguments: &str) -> bool {
    let value: Value = serde_json::from_str(arguments).unwrap();
    value["n"].as_u64().unwrap() < 10 && value["on"].is_boolean() && value.as_object().unwrap().len() == 2
}

#[test]
fn a_call_that_is_wanted_comes() {
    let server = Server::with(Setup { template: TAGGED, ..Setup::default() });
    let named = json!({ "type": "function", "function": { "name": "g" } });
    let mut whole = 0;
    for seed in 0..8 {
        for choice in [json!("required"), named.clone()] {
            let mut body = body(
                json!({ "tool_choice": choice, "parallel_tool_calls": false, "seed": seed, "max_tokens": 160 }),
            );
            let answer = server.client.post("/v1/chat/completions", &body).ok();
            let answer = &answer["choices"][0];
            body["stream"] = true.into();
            let (events, done) = server.client.post("/v1/chat/completions", &body).events();
            assert!(done);
            let deltas: Vec<&Value> = events
                .iter()
                .filter_map(|e| e["choices"][0]["delta"]["tool_calls"].as_array())
                .flatten()
                .collect();
            let arguments: String =
                deltas.iter().filter_map(|d| d["function"]["arguments"].as_str()).collect();
            if answer["finish_reason"] == "length" {
                continue;
            }
            whole += 1;
            let calls = answer["message"]["tool_calls"].as_array().unwrap();
            assert_eq!(
                (calls.len(), &answer["finish_reason"], &answer["message"]["content"]),
                (1, &json!("tool_calls"), &Value::Null)
            );
            let function = &calls[0]["function"];
            assert!(is_good(function["arguments"].as_str().unwrap()), "{function}");
            assert!(choice == "required" || function["name"] == "g");
            // The same in several deltas; the first one has the name.
            assert_eq!(arguments, function["arguments"].as_str().unwrap());
            assert_eq!(deltas[0]["function"]["name"], function["name"]);
            assert!(
                deltas[0]["id"].is_string()
                    && deltas.len() > 4
                    && deltas[1..].iter().all(|d| d["index"] == 0)
            );
            assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
        }
    }
    assert!(whole > 4, "{whole}");
}

/// The template receives all functions, and only one may be called.
#[test]
fn allowed_functions_alone_are_called() {
    let server = Server::with(Setup { template: TAGGED, ..Setup::default() });
    let one = json!([{ "type": "function", "function": { "name": "g" } }]);
    let inner = json!({ "mode": "required", "tools": one });
    let choice = json!({ "type": "allowed_tools", "allowed_tools": inner });
    let flat = json!({ "type": "allowed_tools", "mode": "required", "tools": [{ "type": "function", "name": "g" }] });
    let (mut whole, mut tokens) = (0, Vec::new());
    for seed in 0..6 {
        let more = json!({ "parallel_tool_calls": false, "seed": seed, "max_tokens": 160 });
        let mut body = body(more);
        tokens.push(server.client.post("/v1/chat/completions", &body).ok()["usage"]["prompt_tokens"].clone());
        for choice in [&choice, &flat] {
            body["tool_choice"] = choice.clone();
            let answer = server.client.post("/v1/chat/completions", &body).ok();
            tokens.push(answer["usage"]["prompt_tokens"].clone());
            let answer = &answer["choices"][0];
            if answer["finish_reason"] == "length" {
                continue;
            }
            whole += 1;
            let calls = answer["message"]["tool_calls"].as_array().unwrap();
            assert!(calls.len() == 1 && calls[0]["function"]["name"] == "g", "{calls:?}");
            assert!(is_good(calls[0]["function"]["arguments"].as_str().unwrap()));
        }
    }
    assert!(whole > 2, "{whole}");
    assert!(tokens.iter().all(|n| *n == tokens[0]), "{tokens:?}");
}

#[test]
fn responses_stream_arguments_of_calls() {
    let server = Server::with(Setup { template: TAGGED, ..Setup::default() });
    let flat = json!({ "type": "function", "name": "f", "parameters": { "type": "object", "properties": { "n": { "type": "boolean" } }, "required": ["n"], "additionalProperties": false } });
    let mut whole = 0;
    for seed in 0..6 {
        let body = json!({ "input": "a", "tools": [flat], "tool_choice": { "type": "function", "name": "f" }, "parallel_tool_calls": false, "seed": seed, "max_output_tokens": 160, "stream": true });
        let (events, _) = server.client.post("/v1/responses", &body).events();
        let deltas: Vec<&str> = events
            .iter()
            .filter(|e| e["type"] == "response.function_call_arguments.delta")
            .map(|e| e["delta"].as_str().unwrap())
            .collect();
        let last = &events.last().unwrap()["response"];
        assert_eq!(last["parallel_tool_calls"], false);
        if last["status"] == "incomplete" {
            continue;
        }
        whole += 1;
        let call = &last["output"][0];
        assert_eq!((call["type"].as_str(), call["name"].as_str()), (Some("function_call"), Some("f")));
        assert!(deltas.len() > 1 && deltas.concat() == call["arguments"].as_str().unwrap());
        assert!(serde_json::from_str::<Value>(&deltas.concat()).unwrap()["n"].is_boolean());
    }
    assert!(whole > 2, "{whole}");
}

#[test]
fn what_cannot_be_called_is_refused_by_name() {
    let server = Server::with(Setup { template: TAGGED, ..Setup::default() });
    let error = |change: Value| server.client.post("/v1/chat/completions", &body(change)).error().2;
    assert_eq!(
        error(json!({ "tool_choice": { "type": "function", "function": { "name": "h" } } })).as_deref(),
        Some("tool_choice")
    );
    assert_eq!(error(json!({ "tools": [], "tool_choice": "required" })).as_deref(), Some("tool_choice"));
    let unique = json!([{ "type": "function", "function": { "name": "f", "strict": true, "parameters": { "properties": { "x": { "type": "array", "uniqueItems": true } } } } }]);
    let refused = server.client.post("/v1/chat/completions", &body(json!({ "tools": unique })));
    assert_eq!(refused.error().2.as_deref(), Some("tools[0].function.parameters"));
    assert!(refused.body.contains("uniqueItems"));
    assert_eq!(
        error(json!({ "tools": [{ "type": "function", "function": { "name": "f", "strict": 1 } }] }))
            .as_deref(),
        Some("tools[0].function.strict")
    );
    // This template does not support calls.
    let plain = Server::new();
    let refused = plain.client.post("/v1/chat/completions", &body(json!({ "tool_choice": "required" })));
    assert_eq!(refused.error().2.as_deref(), Some("tools"));
}
