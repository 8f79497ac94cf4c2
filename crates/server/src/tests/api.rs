//! Format of answers.

use super::{CONTEXT, Server, Setup, write_model};
use netcl::llm::LoadedModel;
use netcl::llm::engine::{EngineOptions, Options};
use serde_json::{Value, json};

fn user(text: &str) -> Value {
    json!([{ "role": "user", "content": text }])
}

/// Returns the text of a chat answer.
fn said(answer: &Value) -> String {
    answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

#[test]
fn a_chat_streams_what_it_says_at_once() {
    let server = Server::new();
    let mut body = json!({ "model": "tiny", "messages": user("hello"), "max_tokens": 40, "seed": 5, "ignore_eos": true });
    let whole = server.client.post("/v1/chat/completions", &body);
    assert!(whole.header("x-request-id").is_some());
    let whole = whole.ok();
    assert_eq!(
        (whole["object"].as_str(), whole["choices"][0]["finish_reason"].as_str()),
        (Some("chat.completion"), Some("length"))
    );
    assert_eq!(whole["usage"]["completion_tokens"], 40);
    // <|user|>hello<|end|><|assistant|>
    assert_eq!(whole["usage"]["prompt_tokens"], 8);
    assert_eq!(whole["timings"]["predicted_n"], 40);
    body["stream"] = true.into();
    body["stream_options"] = json!({ "include_usage": true });
    let streamed = server.client.post("/v1/chat/completions", &body);
    assert_eq!(streamed.header("content-type"), Some("text/event-stream"));
    let (events, done) = streamed.events();
    assert!(done);
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let deltas = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str());
    assert_eq!(deltas.collect::<String>(), said(&whole));
    let last = events.last().unwrap();
    assert_eq!(
        (last["choices"].as_array().map(Vec::len), &last["usage"]["completion_tokens"]),
        (Some(0), &json!(40))
    );
    assert_eq!(events[events.len() - 2]["choices"][0]["finish_reason"], "length");
    assert!(events[..events.len() - 1].iter().all(|e| e["usage"].is_null() && e["id"] == last["id"]));
}

/// A sequence depends on its prompt, its seed and the model, not on concurrent requests.
#[test]
fn a_seed_gives_the_same_text_alone_and_among_others() {
    let server = Server::new();
    let body = |seed: u64, n: usize| json!({ "messages": user(&format!("text {seed}")), "max_tokens": 24, "seed": seed, "n": n, "top_k": 20, "ignore_eos": true });
    let alone: Vec<String> =
        (0..6).map(|seed| said(&server.client.post("/v1/chat/completions", &body(seed, 1)).ok())).collect();
    std::thread::scope(|scope| {
        for (seed, alone) in alone.iter().enumerate() {
            let (client, body) = (&server.client, body(seed as u64, 1));
            scope.spawn(move || {
                assert_eq!(said(&client.post("/v1/chat/completions", &body).ok()), *alone, "seed {seed}")
            });
        }
    });
    // The i-th of several sequences has the seed plus i.
    let several = server.client.post("/v1/chat/completions", &body(3, 3)).ok();
    assert_eq!(said(&several), alone[3]);
    let texts: Vec<&str> = several["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["message"]["content"].as_str().unwrap())
        .collect();
    assert!(texts.len() == 3 && texts[0] != texts[1] && texts[1] != texts[2]);
    assert_eq!(
        (several["usage"]["prompt_tokens"].as_u64(), several["usage"]["completion_tokens"].as_u64()),
        (Some(9), Some(72))
    );
}

#[test]
fn completions_take_several_prompts_and_stop_texts() {
    let server = Server::new();
    let post = |body: Value| server.client.post("/v1/completions", &body);
    let both =
        post(json!({ "prompt": ["ab", [97, 98]], "max_tokens": 8, "temperature": 0, "logprobs": 2 })).ok();
    let choices = both["choices"].as_array().unwrap();
    assert_eq!((choices.len(), &choices[0]["text"]), (2, &choices[1]["text"]));
    let logprobs = &choices[0]["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 8);
    assert!(logprobs["token_logprobs"][0].as_f64().unwrap() < 0.0);
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 2);
    let text = choices[0]["text"].as_str().unwrap();
    let stop = text.chars().nth(3).unwrap().to_string();
    let before = text.split(stop.as_str()).next().unwrap();
    let ended =
        post(json!({ "prompt": "ab", "max_tokens": 8, "temperature": 0, "stop": [stop], "echo": true })).ok();
    assert_eq!(ended["choices"][0]["text"].as_str().unwrap(), format!("ab{before}"));
    assert_eq!(ended["choices"][0]["finish_reason"], "stop");
    let (events, done) =
        post(json!({ "prompt": "ab", "max_tokens": 8, "temperature": 0, "stream": true })).events();
    let streamed: String = events.iter().filter_map(|e| e["choices"][0]["text"].as_str()).collect();
    assert!(done && streamed == text, "{streamed:?} {text:?}");
    let forbidden = post(json!({ "prompt": "ab", "max_tokens": 1, "temperature": 0, "logprobs": 0, "logit_bias": { text.as_bytes()[0].to_string(): -100 } })).ok();
    assert_ne!(forbidden["choices"][0]["text"].as_str().unwrap().chars().next(), text.chars().next());
}

#[test]
fn what_is_wrong_is_named() {
    let server = Server::new();
    let chat = |change: Value| {
        let mut body = json!({ "messages": user("a"), "max_tokens": 2 });
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        server.client.post("/v1/chat/completions", &body)
    };
    chat(json!({ "user": "me", "metadata": { "a": "b" }, "store": false, "top_p": null })).ok();
    for (change, param) in [
        (json!({ "frequency": 1 }), "frequency"),
        (json!({ "temperature": "hot" }), "temperature"),
        (json!({ "stream_options": { "include_usage": true } }), "stream_options"),
        (json!({ "top_logprobs": 2 }), "top_logprobs"),
        (json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs"),
        (json!({ "store": true }), "store"),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }),
            "messages[0].content[0].type",
        ),
        (json!({ "response_format": { "type": "yaml" } }), "response_format.type"),
        (json!({ "response_format": { "type": "json_schema" } }), "response_format.json_schema"),
        (json!({ "tool_choice": "sometimes" }), "tool_choice"),
        (json!({ "n": 1000 }), "n"),
        (json!({ "n": 100 }), "n"),
    ] {
        let (status, _, found) = chat(change.clone()).error();
        assert_eq!((status, found.as_deref()), (400, Some(param)), "{change}");
    }
    // The error names the schema keyword that cannot be enforced.
    let schema = json!({ "type": "array", "uniqueItems": true });
    let refused = chat(
        json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "s", "schema": schema } } }),
    );
    assert_eq!(refused.error().2.as_deref(), Some("response_format.json_schema.schema"));
    assert!(refused.body.contains("uniqueItems"), "{}", refused.body);
    let long = chat(json!({ "messages": user(&"x".repeat(CONTEXT)) }));
    assert_eq!(long.error().1.as_deref(), Some("context_length_exceeded"));
    assert!(long.body.contains("256 tokens") && long.body.contains("259 tokens"), "{}", long.body);
    assert_eq!(
        chat(json!({ "model": "gpt-4" })).error(),
        (404, Some("model_not_found".into()), Some("model".into()))
    );
    assert_eq!(server.client.get("/v1/nothing").error().0, 404);
    assert_eq!(server.client.get("/v1/completions").error().0, 405);
    for body in ["", "{", "[]", "{\"messages\": \u{0}}"] {
        assert_eq!(server.client.request("POST", "/v1/chat/completions", body.as_bytes(), "").error().0, 400);
    }
}

#[test]
fn schemas_and_probabilities() {
    let server = Server::new();
    let schema = json!({
        "type": "object",
        "properties": { "name": { "enum": ["ada", "bob"] }, "n": { "type": "integer", "minimum": 0, "maximum": 9 } },
        "required": ["name", "n"],
        "additionalProperties": false,
    });
    let body = |seed: u64| {
        json!({ "messages": user("a"), "seed": seed, "logprobs": true, "top_logprobs": 3,
                "response_format": { "type": "json_schema", "json_schema": { "name": "s", "strict": true, "schema": schema } } })
    };
    for seed in 0..4 {
        let answer = server.client.post("/v1/chat/completions", &body(seed)).ok();
        let choice = &answer["choices"][0];
        if choice["finish_reason"] == "length" {
            continue;
        }
        let value: Value = serde_json::from_str(&said(&answer)).unwrap();
        assert!(
            ["ada", "bob"].contains(&value["name"].as_str().unwrap()) && value["n"].as_u64().unwrap() < 10
        );
        let content = choice["logprobs"]["content"].as_array().unwrap();
        assert_eq!(content.len() as u64, answer["usage"]["completion_tokens"].as_u64().unwrap());
        let text: Vec<u8> = content
            .iter()
            .flat_map(|t| t["bytes"].as_array().unwrap())
            .map(|b| b.as_u64().unwrap() as u8)
            .collect();
        assert_eq!(String::from_utf8(text).unwrap(), said(&answer));
        assert!(content.iter().all(|t| t["top_logprobs"].as_array().unwrap().len() == 3));
    }
    let object =
        json!({ "messages": user("a"), "max_tokens": 1, "response_format": { "type": "json_object" } });
    assert_eq!(said(&server.client.post("/v1/chat/completions", &object).ok()).trim(), "{");
}

#[test]
fn tokens_models_and_embeddings() {
    let server = Server::new();
    let client = &server.client;
    let ids = client.post("/tokenize", &json!({ "content": "héllo<|end|>" })).ok();
    assert_eq!(ids["tokens"], json!([104, 195, 169, 108, 108, 111, 256]));
    assert_eq!(client.post("/detokenize", &ids).ok()["content"], "héllo<|end|>");
    let plain = client
        .post("/tokenize", &json!({ "content": "<|end|>", "parse_special": false, "with_pieces": true }))
        .ok();
    assert_eq!((plain["tokens"].as_array().unwrap().len(), &plain["tokens"][0]["piece"]), (7, &json!("<")));
    let models = client.get("/v1/models").ok();
    let own = &models["data"][0]["netcl"];
    assert_eq!(
        (models["data"][0]["id"].as_str(), own["context"].as_u64(), own["architecture"].as_str()),
        (Some("tiny"), Some(CONTEXT as u64), Some("llama"))
    );
    assert_eq!(client.get("/v1/models/tiny").ok()["id"], "tiny");
    assert_eq!(client.get("/v1/models/none").error().0, 404);
    let one = client
        .post("/v1/embeddings", &json!({ "input": ["ab", "cd", "ab"], "encoding_format": "float" }))
        .ok();
    let vector = |at: usize| -> Vec<f64> {
        one["data"][at]["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let length: f64 = vector(0).iter().map(|x| x * x).sum();
    assert!(
        vector(0).len() == 32
            && (length - 1.0).abs() < 1e-5
            && vector(0) == vector(2)
            && vector(0) != vector(1)
    );
    for empty in [json!(""), json!(["ab", ""])] {
        let refused = client.post("/v1/embeddings", &json!({ "input": empty }));
        assert_eq!((refused.status, refused.json()["error"]["param"].as_str()), (400, Some("input")));
    }
    let bytes = client.post("/v1/embeddings", &json!({ "input": "ab", "encoding_format": "base64" })).ok();
    assert_eq!(bytes["data"][0]["embedding"].as_str().unwrap().len(), 32usize * 4 / 3 * 4 + 4);
    assert_eq!(
        client.post("/v1/embeddings", &json!({ "input": "x".repeat(CONTEXT + 1) })).error().1.as_deref(),
        Some("context_length_exceeded")
    );
    for path in ["/", "/device"] {
        let page = client.get(path);
        assert!(
            page.status == 200
                && page.header("content-security-policy").unwrap().contains("default-src 'none'")
        );
    }
    let text = client.get("/metrics").body;
    assert!(text.contains("netcl_prompt_tokens_total{model=\"tiny\"}") && text.ends_with("# EOF\n"));
    assert_eq!(client.get("/props").ok()["parallel"], 4);
    assert_eq!((client.get("/health").status, client.get("/ready").status), (200, 200));
}

#[test]
fn clients_of_ollama_are_answered() {
    let server = Server::new();
    let client = &server.client;
    assert_eq!(client.get("/api/tags").ok()["models"][0]["name"], "tiny");
    assert_eq!(
        client.post("/api/show", &json!({ "model": "tiny:latest" })).ok()["model_info"]["llama.context_length"],
        256
    );
    let options = json!({ "num_predict": 9, "seed": 4, "ignore_eos": true });
    let body = json!({ "model": "tiny", "messages": user("a"), "options": options });
    let lines = client.post("/api/chat", &body);
    assert_eq!(lines.header("content-type"), Some("application/x-ndjson"));
    let lines: Vec<Value> = lines.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let streamed: String = lines.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect();
    let last = lines.last().unwrap();
    assert_eq!(
        (last["done"].as_bool(), last["done_reason"].as_str(), last["eval_count"].as_u64()),
        (Some(true), Some("length"), Some(9))
    );
    let mut body = body;
    body["stream"] = false.into();
    assert_eq!(client.post("/api/chat", &body).ok()["message"]["content"].as_str(), Some(streamed.as_str()));
    // /api/generate converts a prompt to one user message.
    let generated = json!({ "model": "tiny", "prompt": "a", "options": options, "stream": false });
    assert_eq!(client.post("/api/generate", &generated).ok()["response"].as_str(), Some(streamed.as_str()));
    let raw = json!({ "model": "tiny", "prompt": "a", "raw": true, "options": options, "stream": false });
    assert_eq!(client.post("/api/generate", &raw).ok()["prompt_eval_count"], 1);
    let wrong = client.post(
        "/api/chat",
        &json!({ "model": "tiny", "messages": user("a"), "options": { "num_ctx": 100_000 } }),
    );
    assert!(wrong.status == 400 && wrong.json()["error"].as_str().unwrap().contains("num_ctx"));
    assert_eq!(
        client.post("/api/embed", &json!({ "model": "tiny", "input": "ab" })).ok()["embeddings"][0]
            .as_array()
            .unwrap()
            .len(),
        32
    );
}

/// Answers the first requests of Ollama clients.
#[test]
fn clients_of_ollama_begin() {
    let server = Server::with(Setup { names: vec!["tiny", "other"], ..Setup::default() });
    let client = &server.client;
    let head = client.request("HEAD", "/", b"", "");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    let version = client.get("/api/version").ok();
    let numbers: Vec<u32> =
        version["version"].as_str().unwrap().split('.').map(|n| n.parse().unwrap()).collect();
    assert!(numbers >= vec![0, 6, 4], "{version}");
    let names = |path: &str| -> Vec<String> {
        let list = client.get(path).ok();
        list["models"].as_array().unwrap().iter().map(|m| m["model"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(
        (names("/api/tags"), names("/api/ps")),
        (vec!["tiny".into(), "other".into()], vec!["tiny".into()])
    );
    assert!(client.get("/api/tags").ok()["models"][1]["size"].as_u64().unwrap() > 10_000);
    // An empty request loads a model and is answered at once.
    let load = json!({ "model": "other", "keep_alive": "5m" });
    let loaded = client.post("/api/generate", &load).ok();
    assert_eq!(
        (&loaded["done"], &loaded["done_reason"], &loaded["response"]),
        (&true.into(), &"load".into(), &"".into())
    );
    assert_eq!(names("/api/ps"), ["tiny", "other"]);
    let running = client.get("/api/ps").ok();
    assert!(
        running["models"][1]["size_vram"].as_u64().unwrap() > 10_000
            && running["models"][1]["context_length"] == 256
    );
    let empty = client.post("/api/chat", &json!({ "model": "tiny", "messages": [] })).ok();
    assert_eq!(empty["done_reason"], "load");
    let away = client.post("/api/generate", &json!({ "model": "tiny", "keep_alive": 0 }));
    assert!(away.status == 400 && away.json()["error"].as_str().unwrap().starts_with("keep_alive"));
    let vector = client.post("/api/embeddings", &json!({ "model": "tiny", "prompt": "ab" })).ok();
    assert_eq!(vector["embedding"].as_array().unwrap().len(), 32);
    for path in ["/api/pull", "/api/push", "/api/create", "/api/copy", "/api/blobs/sha256:00"] {
        let refused = client.post(path, &json!({ "model": "tiny" }));
        let message = refused.json()["error"].as_str().unwrap().to_owned();
        assert!(refused.status == 400 && message.contains(path) && message.contains("-m"), "{message}");
    }
}

#[test]
fn models_come_when_they_are_asked_for_and_leave_for_others() {
    let names = vec!["one", "two"];
    let server = Server::with(Setup { names: names.clone(), ..Setup::default() });
    let loaded = |server: &Server| -> Vec<bool> {
        let models = server.client.get("/v1/models").ok();
        models["data"].as_array().unwrap().iter().map(|m| m["netcl"]["loaded"].as_bool().unwrap()).collect()
    };
    let ask = |server: &Server, model: &str| {
        let body = json!({ "model": model, "messages": user("a"), "max_tokens": 2 });
        server.client.post("/v1/chat/completions", &body)
    };
    assert_eq!(loaded(&server), [true, false]);
    assert_eq!(ask(&server, "two").ok()["model"], "two");
    assert_eq!(loaded(&server), [true, true]);
    drop(server);
    // The memory suffices for one of them: the other one is unloaded.
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path());
    let needs = LoadedModel::needs(folder.path(), Options::default()).unwrap();
    let (texts, page) = (Setup::default().parallel, EngineOptions::default().page);
    let budget = Some(200_000 + needs.workspace(needs.config().context, texts, page));
    let server = Server::with(Setup { names, budget, ..Setup::default() });
    for model in ["two", "one", "one", "two"] {
        assert_eq!(ask(&server, model).ok()["model"], model);
        assert_eq!(loaded(&server), [model == "one", model == "two"]);
        // The cache gets the part of the budget that weights and workspace leave: 8 KiB per page here.
        let pages = server.client.get("/device/data").ok()["engine"]["pages_total"].as_u64().unwrap();
        assert!((1..8).contains(&pages), "{pages}");
    }
}

#[test]
fn responses_stream_as_items_with_parts() {
    let server = Server::new();
    let mut body = json!({ "input": "a", "instructions": "b", "max_output_tokens": 12, "seed": 2, "ignore_eos": true, "metadata": { "k": "v" } });
    let whole = server.client.post("/v1/responses", &body).ok();
    assert_eq!(
        (whole["status"].as_str(), whole["incomplete_details"]["reason"].as_str()),
        (Some("incomplete"), Some("max_output_tokens"))
    );
    assert_eq!((whole["usage"]["output_tokens"].as_u64(), &whole["metadata"]["k"]), (Some(12), &json!("v")));
    let text = whole["output"][0]["content"][0]["text"].as_str().unwrap();
    body["stream"] = true.into();
    let streamed = server.client.post("/v1/responses", &body);
    let (events, _) = streamed.events();
    let kinds: Vec<&str> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
    assert_eq!(
        kinds[..4],
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added"
        ]
    );
    assert_eq!(
        kinds[kinds.len() - 4..],
        [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.incomplete"
        ]
    );
    let names: Vec<&str> = streamed.body.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(names, kinds);
    assert!(events.iter().enumerate().all(|(at, e)| e["sequence_number"] == at));
    let deltas = events.iter().filter(|e| e["type"] == "response.output_text.delta");
    assert_eq!(deltas.map(|e| e["delta"].as_str().unwrap()).collect::<String>(), text);
    let last = &events.last().unwrap()["response"];
    assert_eq!((&last["output"][0]["content"][0]["text"], &last["usage"]), (&json!(text), &whole["usage"]));
    for (change, param) in [
        (json!({ "previous_response_id": "resp_1" }), "previous_response_id"),
        (json!({ "truncation": "auto" }), "truncation"),
        (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type"),
        (json!({ "text": { "format": { "type": "json_schema", "name": "s" } } }), "text.format.schema"),
    ] {
        let mut body = json!({ "input": "a" });
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        assert_eq!(server.client.post("/v1/responses", &body).error().2.as_deref(), Some(param));
    }
}

/// Returns an example that matches a schema of the document.
fn example(document: &Value, schema: &Value) -> Value {
    if let Some(place) = schema["$ref"].as_str() {
        return example(document, document.pointer(&place[1..]).unwrap());
    }
    for kind in ["anyOf", "enum"] {
        if let Some(first) = schema[kind].as_array().map(|all| &all[0]) {
            return if kind == "enum" { first.clone() } else { example(document, first) };
        }
    }
    match schema["type"].as_str() {
        _ if schema["const"].is_string() => schema["const"].clone(),
        Some("string") => json!("a"),
        Some("boolean") => json!(false),
        Some("integer") => json!(schema["minimum"].as_i64().unwrap_or(1).max(1)),
        Some("number") => json!(1),
        Some("array") => json!([example(document, &schema["items"])]),
        Some("object") => {
            let mut object = serde_json::Map::new();
            for key in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                object.insert(key.into(), example(document, &schema["properties"][key]));
            }
            object.into()
        }
        _ => Value::Null,
    }
}

/// Each route exists, and each field is supported.
#[test]
fn the_document_of_the_interface_is_true() {
    let server = Server::new();
    let document = server.client.get("/openapi.json").ok();
    let mut fields = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        if methods.get("get").is_some() {
            assert_eq!(server.client.get(&path.replace("{name}", "tiny")).status, 200, "{path}");
        }
        let Some(post) = methods.get("post") else { continue };
        let place = post["requestBody"]["content"]["application/json"]["schema"]["$ref"].as_str().unwrap();
        let schema = document.pointer(&place[1..]).unwrap();
        let mut whole = example(&document, schema);
        if whole.get("model").is_some() {
            whole["model"] = "tiny".into();
        }
        for (field, of) in schema["properties"].as_object().unwrap() {
            let mut body = whole.clone();
            body[field] = if field == "model" { "tiny".into() } else { example(&document, of) };
            if path.starts_with("/v1/") && !path.ends_with("embeddings") {
                body[if path.ends_with("responses") { "max_output_tokens" } else { "max_tokens" }] = 1.into();
            }
            let answer = server.client.post(path, &body);
            let unknown = answer.body.contains("this field is not supported");
            assert!(answer.status < 500 && answer.status != 404 && !unknown, "{path} {body}: {answer:?}");
            fields += 1;
        }
    }
    assert!(fields > 100, "{fields}");
}
