//! Measures the time to first token over HTTP and in the engine alone. The times are printed and not checked: they depend on the machine and its
//! load.

use super::Server;
use netcl::llm::LoadedModel;
use netcl::llm::engine::{EngineOptions, Event, Job, Options, Request, Speculation};
use netcl::llm::sampler::{Sampler, Sampling};
use netcl::tensor::suite::test_device;
use serde_json::json;
use std::io::Read;
use std::time::Instant;

/// Returns different prompts of ten tokens.
fn prompts() -> impl Iterator<Item = Vec<u32>> {
    (0..31).map(|n| (0..10).map(|at| 32 + (7 * n + 3 * at) % 90).collect())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

#[test]
fn the_first_token_is_as_soon_as_the_engines() {
    let server = Server::new();
    let device = test_device().unwrap();
    let model =
        LoadedModel::open_adapted(server.folder.path(), &[], &[device], Options::default(), &mut |_| Ok(()));
    let model = model.unwrap();
    let mut engine = model.engine(EngineOptions::default(), Speculation::Off).unwrap();
    let (mut alone, mut over) = (Vec::new(), Vec::new());
    for prompt in prompts() {
        let began = Instant::now();
        let request = Request { max: Some(2), ignore_ends: true, ..Request::default() };
        let sampler = Sampler::of_ids(Sampling::greedy()).unwrap();
        engine.add(Job::new(prompt.clone(), sampler, request)).unwrap();
        let mut first = None;
        while !engine.is_idle() {
            let events = engine.step().unwrap();
            if first.is_none() && events.iter().any(|event| matches!(event, Event::Token { .. })) {
                first = Some(began.elapsed());
            }
        }
        alone.push(first.unwrap().as_secs_f64() * 1e3);
        let body = json!({ "prompt": prompt, "max_tokens": 2, "temperature": 0, "stream": true, "ignore_eos": true });
        let began = Instant::now();
        let mut stream = server.client.send("POST", "/v1/completions", body.to_string().as_bytes(), "");
        let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
        while !bytes.windows(6).any(|window| window == b"data: ") {
            let n = stream.read(&mut part).unwrap();
            assert!(n > 0, "{}", String::from_utf8_lossy(&bytes));
            bytes.extend_from_slice(&part[..n]);
        }
        over.push(began.elapsed().as_secs_f64() * 1e3);
        assert!(bytes.starts_with(b"HTTP/1.1 200"));
        stream.read_to_end(&mut bytes).unwrap();
    }
    let (alone, over) = (median(alone), median(over));
    println!(
        "first token of a prompt of 10 tokens: engine {alone:.2} ms, HTTP {over:.2} ms, {:.2} ms more",
        over - alone
    );
}
