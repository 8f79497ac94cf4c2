//! Files that disappear, devices that fail, and thousands of clients that disconnect: only the affected requests fail, and no slot is lost.

use super::client::read;
use super::{Server, Setup};
use netcl::device::fault::{FaultDriver, Plan};
use netcl::device::{Device, Settings, open_driver};
use netcl::tensor::suite::test_device;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::sync::Arc;

fn short(model: &str) -> Value {
    json!({ "model": model, "prompt": "a", "max_tokens": 3, "seed": 1 })
}

/// Checks that nothing runs, nothing waits, and all pages and slots are free.
fn is_free(server: &Server, places: usize) {
    server.wait("the end of all", |data| {
        let engine = &data["engine"];
        engine["running"] == 0 && engine["waiting"] == 0 && engine["pages_used"] == 0
    });
    let metrics = server.client.get("/metrics").body;
    for line in metrics.lines().filter(|line| line.starts_with("netcl_texts{")) {
        assert!(line.ends_with(" 0"), "{line}");
    }
    for (_, model) in server.app.models.each() {
        let model = model.unwrap();
        assert!(
            model.places(places).is_ok() && model.places(places + 1).is_err(),
            "{} lost places",
            model.name
        );
    }
}

#[test]
fn a_model_whose_files_are_deleted_goes_on_and_others_say_what_is_missing() {
    let server = Server::with(Setup { names: vec!["one", "two"], ..Setup::default() });
    let before = server.client.post("/v1/completions", &short("one")).ok();
    for file in std::fs::read_dir(server.folder.path()).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    let after = server.client.post("/v1/completions", &short("one")).ok();
    assert_eq!(before["choices"], after["choices"]);
    let missing = server.client.post("/v1/completions", &short("two"));
    assert_eq!(missing.error().0, 500);
    let path = server.folder.path().to_str().unwrap();
    assert!(missing.body.contains(path) && missing.body.contains("two"), "{}", missing.body);
    // The failure of one request does not affect the other, nor the next one.
    server.client.post("/v1/completions", &short("one")).ok();
    assert_eq!(server.client.post("/v1/completions", &short("two")).status, 500);
    super::write_model(server.folder.path());
    server.client.post("/v1/completions", &short("two")).ok();
    is_free(&server, 20);
}

/// Returns the test device with a fault-injecting driver.
fn faulty() -> (Device, Arc<Plan>) {
    let settings = Settings::from_env();
    let id = test_device().unwrap().capabilities().id.clone();
    let plan = Arc::new(Plan::default());
    let inner = open_driver(&id, &settings).unwrap();
    (Device::from_driver(Box::new(FaultDriver::new(inner, Arc::clone(&plan))), settings), plan)
}

#[test]
fn a_device_that_fails_ends_texts_with_an_error_and_the_next_ones_are_right() {
    let (device, plan) = faulty();
    let server = Server::with(Setup { device, ..Setup::default() });
    let body = json!({ "prompt": "a", "max_tokens": 60, "seed": 1, "ignore_eos": true });
    let stream = json!({ "prompt": "a", "max_tokens": 60, "seed": 1, "ignore_eos": true, "stream": true });
    let expected = server.client.post("/v1/completions", &body).ok()["choices"][0]["text"].clone();
    plan.arm(0);
    server.client.post("/v1/completions", &body).ok();
    let calls = plan.calls();
    assert!(calls > 10, "{calls}");
    let mut failed = 0;
    for at in [1, 2, calls / 3, calls / 2, calls - 1] {
        plan.arm(at.max(1));
        let both = [&body, &stream]
            .map(|body| server.client.send("POST", "/v1/completions", body.to_string().as_bytes(), ""));
        let [whole, streamed] = both.map(read);
        failed += u64::from(whole.status != 200);
        assert!(
            whole.status == 200 || whole.error().0 == 500 && whole.body.contains("injected"),
            "{whole:?}"
        );
        if streamed.status == 200 {
            let (events, done) = streamed.events();
            assert!(done || events.last().unwrap()["error"]["message"].is_string(), "{streamed:?}");
        }
        plan.arm(0);
        // Later requests are not affected.
        assert_eq!(
            server.client.post("/v1/completions", &body).ok()["choices"][0]["text"],
            expected,
            "call {at}"
        );
        is_free(&server, 20);
    }
    assert!(failed > 1, "{failed}");
    // A failed embedding is a separate error.
    plan.arm(3);
    assert_eq!(server.client.post("/v1/embeddings", &json!({ "input": "a" })).error().0, 500);
    plan.arm(0);
    server.client.post("/v1/embeddings", &json!({ "input": "a" })).ok();
    assert_eq!(server.client.post("/v1/completions", &body).ok()["choices"][0]["text"], expected);
    is_free(&server, 20);
    let metrics = server.client.get("/metrics").body;
    let line = metrics.lines().find(|line| line.starts_with("netcl_texts_failed_total")).unwrap();
    assert!(!line.ends_with(" 0"), "{line}");
}

/// After a defect or a device error, a model needs a new engine. If that fails too, the next request loads the model again.
#[test]
fn a_model_that_finds_no_engine_is_given_up_and_loaded_again() {
    let (device, plan) = faulty();
    let server = Server::with(Setup { device, ..Setup::default() });
    let body = json!({ "prompt": "a", "max_tokens": 40, "seed": 1, "ignore_eos": true });
    let text = || server.client.post("/v1/completions", &body).ok()["choices"][0]["text"].clone();
    let expected = text();
    let several = json!({ "prompt": "a", "max_tokens": 250, "ignore_eos": true, "n": 4 });
    for has_defect in [true, false] {
        let runtime = crate::runtime().unwrap();
        let model = runtime.block_on(server.app.models.get(None)).unwrap();
        is_free(&server, 20);
        // Every call fails from the first one, or from one in the middle of the sequences.
        plan.arm(if has_defect { 1 } else { 20 });
        plan.lasting(1 << 40);
        if has_defect {
            model.inject_panic();
        } else {
            let ended = server.client.post("/v1/completions", &several);
            assert!(ended.error().0 == 500 && ended.body.contains("injected"), "{ended:?}");
        }
        server.wait("its end", |_| !model.is_alive());
        // Requests of the old model are rejected with an error that asks to retry.
        let lost = runtime.block_on(model.embed(vec![vec![1]])).unwrap_err();
        assert!(lost.status == 503 && lost.retry_after.is_some(), "{lost:?}");
        // While the device fails, the model cannot be loaded, and the server reports it.
        let failed = server.client.post("/v1/completions", &body);
        assert!(failed.error().0 == 500 && failed.body.contains("cannot be loaded"), "{failed:?}");
        plan.arm(0);
        assert_eq!(text(), expected);
        let next = runtime.block_on(server.app.models.get(None)).unwrap();
        assert!(next.is_alive() && !Arc::ptr_eq(&next, &model));
        drop((next, model));
        is_free(&server, 20);
    }
}

#[test]
fn a_thousand_clients_vanish_and_no_place_is_lost() {
    let server = Server::with(Setup { parallel: 4, queue: 40, ..Setup::default() });
    let long = |stream: bool| {
        json!({ "prompt": "a", "max_tokens": 250, "ignore_eos": true, "stream": stream }).to_string()
    };
    for _ in 0..20 {
        let mut clients = Vec::new();
        for at in 0..50 {
            let body = long(at % 2 == 0);
            let head = server.client.head("POST", "/v1/completions", body.len(), "");
            let mut stream = server.client.connect();
            // Clients disconnect before the request, in the head, in the body, before the answer, and in the middle of it.
            let sent = match at % 5 {
                0 => String::new(),
                1 => head[..head.len() / 2].to_owned(),
                2 => head + &body[..body.len() / 2],
                _ => head + &body,
            };
            stream.write_all(sent.as_bytes()).unwrap();
            if at == 4 {
                let mut some = [0; 64];
                assert!(stream.read(&mut some).unwrap() > 0);
            }
            clients.push(stream);
        }
        drop(clients);
    }
    is_free(&server, 44);
    let data = server.client.get("/device/data").ok();
    assert!(data["requests"]["cancelled"].as_u64() > Some(0), "{data}");
    assert_eq!(server.client.post("/v1/completions", &short("tiny")).ok()["usage"]["completion_tokens"], 3);
}

#[test]
fn floods_of_heads_are_refused_and_others_are_answered() {
    let server = Server::new();
    std::thread::scope(|scope| {
        for which in 0..32 {
            let server = &server;
            scope.spawn(move || {
                let mut stream = server.client.connect();
                let line = match which % 3 {
                    0 => "x-a: b\r\n".repeat(50_000),
                    1 => format!("x-a: {}\r\n", "b".repeat(1 << 20)),
                    _ => "x".repeat(1 << 20),
                };
                let _ = stream.write_all(format!("GET / HTTP/1.1\r\n{line}").as_bytes());
                let mut answer = Vec::new();
                let _ = stream.read_to_end(&mut answer);
                let text = String::from_utf8_lossy(&answer);
                assert!(text.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
            });
        }
        for _ in 0..8 {
            server.client.post("/v1/completions", &short("tiny")).ok();
        }
    });
    is_free(&server, 20);
}

#[test]
fn kernels_are_timed_where_that_is_asked_for() {
    let server = Server::with(Setup { profile: Some(2), ..Setup::default() });
    let body = json!({ "prompt": "a", "max_tokens": 200, "seed": 1, "ignore_eos": true });
    let timed = server.client.post("/v1/completions", &body).ok();
    let data = server.client.get("/device/data").ok();
    assert!(data["profile"]["every"] == 2 && data["profile"]["steps"].as_f64() > Some(0.0), "{data}");
    let kernels = data["kernels"].as_array().unwrap();
    let shares: f64 = kernels.iter().map(|k| k["share"].as_f64().unwrap()).sum();
    assert!(!kernels.is_empty() && (shares - 1.0).abs() < 1e-6, "{kernels:?}");
    let plain = Server::new();
    assert_eq!(plain.client.post("/v1/completions", &body).ok()["choices"], timed["choices"]);
    let data = plain.client.get("/device/data").ok();
    assert!(data["kernels"] == json!([]) && data["profile"]["every"].is_null());
}

#[test]
fn streams_go_on_beside_many_texts_to_embed() {
    let server = Server::new();
    let texts: Vec<String> = (0..1000).map(|n| format!("{n:0200}")).collect();
    let body = json!({ "input": texts, "encoding_format": "float" });
    let wanted = server.client.send("POST", "/v1/embeddings", body.to_string().as_bytes(), "");
    server.wait("the first of them", |data| data["tokens"]["prompt_total"].as_u64() > Some(1000));
    let answer =
        server.client.post("/v1/completions", &json!({ "prompt": "b", "max_tokens": 5, "ignore_eos": true }));
    let read_then = server.client.get("/device/data").ok()["tokens"]["prompt_total"].as_u64().unwrap();
    assert_eq!(answer.ok()["usage"]["completion_tokens"], 5);
    assert!(read_then < 1000 * 200, "all {read_then} tokens were read before another text went on");
    let made = read(wanted).ok();
    assert_eq!(
        (made["data"].as_array().unwrap().len(), &made["usage"]["prompt_tokens"]),
        (1000, &json!(200_000))
    );
    let alone =
        server.client.post("/v1/embeddings", &json!({ "input": texts[7], "encoding_format": "float" })).ok();
    assert_eq!(alone["data"][0]["embedding"], made["data"][7]["embedding"]);
    is_free(&server, 20);
}
