//! Clients that disconnect, stall or send invalid data, full queues, and device failures.

use super::client::{HttpAnswer, read};
use super::{Server, Setup};
use crate::app::ServeOptions;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

/// Returns a request for as many tokens as the context allows.
fn long(stream: bool) -> Value {
    json!({ "prompt": "a", "max_tokens": 250, "ignore_eos": true, "stream": stream })
}

#[test]
fn keys_are_wanted_and_never_told() {
    let keys = vec!["secret-one".to_owned(), "secret-two".to_owned()];
    let options = ServeOptions { port: 0, keys, ..ServeOptions::default() };
    let mut server = Server::with(Setup { options, ..Setup::default() });
    assert_eq!(server.client.get("/v1/models").error(), (401, Some("invalid_api_key".into()), None));
    assert_eq!((server.client.get("/health").status, server.client.get("/").status), (200, 200));
    for wrong in ["secret-on", "secret-one2", "", "Bearer"] {
        server.client.key = Some(wrong.into());
        assert_eq!(server.client.get("/metrics").status, 401, "{wrong}");
    }
    for right in ["secret-one", "secret-two"] {
        server.client.key = Some(right.into());
        assert_eq!(server.client.get("/props").ok()["auth"], true);
        assert!(!server.client.get("/metrics").body.contains("secret"));
    }
    assert!(server.app.options.keys.is_empty(), "keys are stored only as hashes");
}

#[test]
fn pages_of_others_are_refused() {
    let server = Server::new();
    let ask = |more: &str| server.client.request("GET", "/v1/models", b"", more).status;
    assert_eq!(ask("Origin: https://example.com\r\n"), 403);
    assert_eq!(ask("Origin: null\r\n"), 403);
    let own = format!("Origin: http://{}\r\n", server.app.address.unwrap());
    assert_eq!(ask(&own), 200);
    // A name that an attacker made to resolve to this machine.
    let mut stream = server.client.connect();
    stream
        .write_all(b"GET /v1/models HTTP/1.1\r\nHost: evil.example:8080\r\nConnection: close\r\n\r\n")
        .unwrap();
    assert_eq!(read(stream).status, 403);
    let options =
        ServeOptions { port: 0, origins: vec!["https://example.com".into()], ..ServeOptions::default() };
    let server = Server::with(Setup { options, ..Setup::default() });
    let allowed = server.client.request("GET", "/v1/models", b"", "Origin: https://example.com\r\n");
    assert_eq!(
        (allowed.status, allowed.header("access-control-allow-origin")),
        (200, Some("https://example.com"))
    );
    assert_eq!(
        server.client.request("GET", "/v1/models", b"", "Origin: https://other.example\r\n").status,
        403
    );
}

#[test]
fn a_full_queue_says_when_to_try_again() {
    let server = Server::with(Setup { parallel: 1, queue: 2, ..Setup::default() });
    let model = crate::runtime().unwrap().block_on(server.app.models.get(None)).unwrap();
    let short = json!({ "prompt": "a", "max_tokens": 2 });
    let held = model.places(3).unwrap();
    let refused = server.client.post("/v1/completions", &short);
    assert_eq!(refused.error(), (429, Some("rate_limit_exceeded".into()), None));
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    assert_eq!(server.client.post("/v1/embeddings", &json!({ "input": "a" })).status, 429);
    drop(held);
    let _two = model.places(2).unwrap();
    server.client.post("/v1/completions", &short).ok();
    let several = json!({ "prompt": ["a", "b"], "max_tokens": 2 });
    assert_eq!(server.client.post("/v1/completions", &several).status, 429);
    assert_eq!(server.client.get("/device/data").ok()["requests"]["rejected"], 3);
    // More than the total number of slots is a different error.
    let body = json!({ "prompt": "a", "n": 4 });
    assert_eq!(
        server.client.post("/v1/completions", &body).error(),
        (400, Some("invalid_value".into()), Some("n".into()))
    );
}

#[test]
fn a_slow_reader_holds_nobody() {
    let server = Server::with(Setup { parallel: 2, ..Setup::default() });
    let slow: Vec<_> = (0..2)
        .map(|_| {
            let body = json!({ "prompt": "a", "max_tokens": 250, "ignore_eos": true, "stream": true, "logprobs": 5 });
            server.client.send("POST", "/v1/completions", body.to_string().as_bytes(), "")
        })
        .collect();
    // They occupy both slots and read nothing; the next request is still answered.
    let other = server.client.post("/v1/completions", &json!({ "prompt": "b", "max_tokens": 5 }));
    assert_eq!(other.status, 200);
    for stream in slow {
        let (events, done) = read(stream).events();
        let tokens: usize = events
            .iter()
            .filter_map(|e| e["choices"][0]["logprobs"]["tokens"].as_array())
            .map(Vec::len)
            .sum();
        assert!(done && tokens == 250, "{tokens}");
    }
}

/// The answers fit into socket buffers, so the server cannot detect that their clients do not read.
#[test]
fn stalled_readers_do_not_delay_the_next_request() {
    let server = Server::with(Setup { parallel: 4, queue: 60, ..Setup::default() });
    let body = long(true).to_string();
    let stalled: Vec<_> =
        (0..40).map(|_| server.client.send("POST", "/v1/completions", body.as_bytes(), "")).collect();
    server.wait("their requests", |data| {
        let count = |key: &str| data["engine"][key].as_u64().unwrap_or_default();
        count("running") + count("waiting") >= 36
    });
    let made = || server.client.get("/device/data").ok()["tokens"]["generated_total"].as_u64().unwrap();
    let before = made();
    server.client.post("/v1/completions", &json!({ "prompt": "b", "max_tokens": 5 })).ok();
    let meanwhile = made() - before;
    assert!(meanwhile < 40 * 250 / 4, "{meanwhile} of {} tokens came before its end", 40 * 250);
    drop(stalled);
}

/// Sends the head of a request, then its body one byte at a time until the server stops reading. Returns the answer.
fn dripped(server: &Server) -> HttpAnswer {
    let stream = server.client.connect();
    let mut out = stream.try_clone().unwrap();
    out.write_all(server.client.head("POST", "/v1/completions", 1 << 20, "").as_bytes()).unwrap();
    std::thread::spawn(move || {
        while out.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    read(stream)
}

/// A body that arrives one byte at a time ends long before the time limit of a large body.
#[test]
fn a_body_that_comes_a_byte_at_a_time_is_late() {
    let options =
        ServeOptions { port: 0, read_timeout: Duration::from_secs(3600), ..ServeOptions::default() };
    let server = Server::with(Setup { options, ..Setup::default() });
    let late = dripped(&server);
    assert!(late.error().0 == 408 && late.body.contains("timed out"), "{late:?}");
}

#[test]
fn slow_bodies_make_room_for_requests() {
    let options = ServeOptions {
        port: 0,
        connections: 4,
        read_timeout: Duration::from_secs(3600),
        ..ServeOptions::default()
    };
    let server = Server::with(Setup { options, ..Setup::default() });
    let slow = || {
        let mut stream = server.client.connect();
        stream.write_all(server.client.head("POST", "/v1/completions", 100, "").as_bytes()).unwrap();
        stream
    };
    let first: Vec<_> = (0..4).map(|_| slow()).collect();
    server.client.get("/health").ok();
    // A connection that is sending an answer is not closed for another.
    let answer = server.client.send("POST", "/v1/completions", long(true).to_string().as_bytes(), "");
    let more: Vec<_> = (0..4).map(|_| slow()).collect();
    assert!(read(answer).events().1, "the answer was cut");
    let mut oldest = first.into_iter().next().unwrap();
    assert_eq!(
        oldest.read(&mut [0; 16]).unwrap(),
        0,
        "the connection that was slow for the longest time was kept"
    );
    drop(more);
}

#[test]
fn bodies_and_heads_have_bounds() {
    let options = ServeOptions {
        port: 0,
        max_body: 1 << 20,
        read_timeout: Duration::from_millis(400),
        ..ServeOptions::default()
    };
    let server = Server::with(Setup { options, ..Setup::default() });
    let large = json!({ "prompt": "x".repeat(3 << 20) }).to_string();
    let refused = server.client.request("POST", "/v1/completions", large.as_bytes(), "");
    assert_eq!(refused.error(), (413, Some("request_too_large".into()), None));
    // A body that does not arrive.
    let mut stream = server.client.connect();
    stream.write_all(server.client.head("POST", "/v1/completions", 100, "").as_bytes()).unwrap();
    assert_eq!(read(stream).error().0, 408);
    // A head that does not arrive.
    let mut stream = server.client.connect();
    stream.write_all(b"GET / HT").unwrap();
    let (began, mut rest) = (Instant::now(), Vec::new());
    let _ = stream.read_to_end(&mut rest);
    assert!(began.elapsed() < Duration::from_secs(60), "the connection ends");
    // The head of this request never ends.
    let mut stream = server.client.connect();
    let flood = format!("GET / HTTP/1.1\r\n{}", "x-a: b\r\n".repeat(20_000));
    let _ = stream.write_all(flood.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(server.client.get("/health").status, 200);
}

#[test]
fn answers_end_before_the_server_does() {
    let mut server = Server::new();
    let stream = server.client.send("POST", "/v1/completions", long(true).to_string().as_bytes(), "");
    server.wait("its first token", |data| data["tokens"]["generated_total"].as_u64() > Some(0));
    server.ask_to_stop();
    let (events, done) = read(stream).events();
    assert!(done && events.last().unwrap()["choices"][0]["finish_reason"] == "length");
    server.join();
}

#[test]
fn answers_that_take_too_long_are_ended_with_an_error() {
    let options = ServeOptions { port: 0, drain: Duration::ZERO, ..ServeOptions::default() };
    let mut server = Server::with(Setup { options, ..Setup::default() });
    let streams: Vec<_> = (0..8)
        .map(|_| server.client.send("POST", "/v1/completions", long(true).to_string().as_bytes(), ""))
        .collect();
    server.wait("a token", |data| data["tokens"]["generated_total"].as_u64() > Some(0));
    server.ask_to_stop();
    let ended = streams.into_iter().map(|stream| read(stream).events()).filter(|(_, done)| !done);
    for (events, _) in ended {
        assert!(events.is_empty() || events.last().unwrap()["error"]["message"].is_string(), "{events:?}");
    }
    server.join();
}
