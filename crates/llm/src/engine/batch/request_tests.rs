//! Request options: samplers of every kind, grammars, log probabilities, several choices. All run in one batch, and each result must equal that of
//! the request alone.

use super::tests::{VOCAB, llama};
use super::*;
use crate::engine::{CacheType, Request};
#[cfg(feature = "grammar")]
use crate::grammar::Grammars;
use crate::sampler::{Dry, Mirostat, Sampling, StopTexts};
use crate::tokenizer::{TokenKind, Tokenizer, Vocab};
use netcl_model::layers::Mode;
use netcl_tensor::suite::quickly_built;
use netcl_tensor::{Tensor, no_grad};

const END: u32 = 1;

/// Returns a tokenizer with the model's number of tokens: two without text, and characters.
fn tokenizer() -> Tokenizer {
    let signs = "{}[]\":,. 0123456789abcdefklst";
    let mut tokens = vec!["<unk>".to_owned(), "</s>".to_owned()];
    tokens.extend(signs.chars().map(|c| if c == ' ' { "▁".into() } else { String::from(c) }));
    assert_eq!(tokens.len(), VOCAB);
    let mut kinds = vec![TokenKind::Normal; VOCAB];
    (kinds[0], kinds[1]) = (TokenKind::Unknown, TokenKind::Control);
    let (scores, model) = (vec![0.0; VOCAB], "llama".into());
    let vocab = Vocab { model, tokens, kinds, scores, eos: Some(END), unknown: Some(0), ..Vocab::default() };
    Tokenizer::from_vocab(&vocab).unwrap()
}

const OPTIONS: EngineOptions = EngineOptions {
    texts: 6,
    queue: 64,
    tokens: Some(240),
    memory: None,
    page: 4,
    chunk: 6,
    cache: CacheType::Weights,
    share: true,
    drafted: 3,
};

/// Returns one sampler of each kind: for the device, for every host-only step, and with grammars.
fn samplers(tokenizer: &Tokenizer) -> Vec<Sampler> {
    let base = |seed: u64| Sampling { seed, temperature: 1.5, ..Sampling::default() };
    let dry = Dry { multiplier: 0.8, allowed_length: 1, ..Dry::default() };
    let all = [
        Sampling::greedy(),
        Sampling { top_k: 6, ..base(1) },
        Sampling { repeat_penalty: 1.4, ..base(2) },
        Sampling { frequency_penalty: 0.7, presence_penalty: 0.4, ..base(3) },
        Sampling { dry, ..base(4) },
        Sampling { xtc_probability: 0.9, xtc_threshold: 0.05, ..base(5) },
        Sampling { mirostat: Mirostat::One, mirostat_tau: 2.0, ..base(6) },
        Sampling { mirostat: Mirostat::Two, mirostat_tau: 2.0, ..base(7) },
        Sampling { typical_p: 0.6, ..base(8) },
        Sampling { dynatemp_range: 0.5, ..base(9) },
        Sampling { top_n_sigma: 1.0, ..base(10) },
        Sampling { logit_bias: vec![(9, 2.0), (12, f32::NEG_INFINITY)], ..base(11) },
    ];
    let samplers = all.into_iter().map(|sampling| Sampler::new(sampling, tokenizer).unwrap());
    #[cfg(feature = "grammar")]
    let samplers = {
        let grammars = Grammars::new(tokenizer).unwrap();
        let schema = serde_json::json!({
            "type": "object",
            "properties": { "a": { "type": "integer", "minimum": 0, "maximum": 99 }, "b": { "type": "boolean" } },
            "required": ["a"],
            "additionalProperties": false,
        });
        let bound = [
            (Sampling::greedy(), grammars.regex("[0-9]{3}(,[0-9]{2})*").unwrap()),
            (base(12), grammars.json_schema(&schema).unwrap()),
            (
                Sampling { repeat_penalty: 1.3, ..base(13) },
                grammars.lark("start: \"a\" /[b-f]+/ \"t\"").unwrap(),
            ),
        ];
        let bound =
            bound.map(|(sampling, grammar)| Sampler::new(sampling, tokenizer).unwrap().following(grammar));
        samplers.chain(bound)
    };
    samplers.collect()
}

fn jobs(tokenizer: &Tokenizer, max: usize) -> Vec<Job> {
    let request = Request { max: Some(max), ..Request::default() };
    let of = |(i, sampler): (usize, Sampler)| {
        let prompt = (0..3 + 5 * (i % 4)).map(|at| ((at * at + 3 * i) % VOCAB) as u32).collect();
        Job::new(prompt, sampler, request.clone())
    };
    samplers(tokenizer).into_iter().enumerate().map(of).collect()
}

/// Returns the logits after tokens, from a full pass.
fn logits(decoder: &Decoder, ids: &[u32]) -> Vec<f32> {
    let all = Tensor::from_u32(decoder.params().device(), [1, ids.len()], ids).unwrap();
    let logits = no_grad(|| decoder.forward(&all, Mode::eval())).unwrap().to_vec().unwrap();
    logits[logits.len() - VOCAB..].to_vec()
}

/// Returns the tokens after a prompt up to the end token, and the logits before each.
fn alone(decoder: &Decoder, job: &Job) -> (Vec<u32>, Vec<Vec<f32>>) {
    let (mut ids, mut sampler, mut all) = (job.prompt.clone(), job.sampler.clone(), Vec::new());
    sampler.begin(&ids);
    for _ in 0..job.request.max.unwrap() {
        let logits = logits(decoder, &ids);
        let token = sample(&mut sampler, logits.clone(), &[], None).unwrap().token;
        if token == END {
            break;
        }
        all.push(logits);
        ids.push(token);
    }
    (ids.split_off(job.prompt.len()), all)
}

/// Result of a request.
#[derive(Clone, Default)]
struct RequestResult {
    tokens: Vec<u32>,
    logprobs: Vec<Option<Logprobs>>,
    text: String,
    end: Option<(Finish, Usage)>,
}

fn run(engine: &mut Engine<'_>, ids: &[RequestId]) -> Vec<RequestResult> {
    let mut all = vec![RequestResult::default(); ids.len()];
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            let heard = &mut all[ids.iter().position(|id| *id == event.id()).unwrap()];
            match event {
                Event::Token { token, text, logprobs, .. } => {
                    heard.tokens.push(token);
                    heard.logprobs.push(logprobs);
                    heard.text += &text;
                }
                Event::Text { text, .. } => heard.text += &text,
                Event::Done { finish, usage, .. } => heard.end = Some((finish, usage)),
                Event::Failed { error, .. } => panic!("{error}"),
            }
        }
        assert!(engine.pages.is_consistent(&engine.held()));
    }
    assert_eq!(engine.pages.available(), engine.pages.count(), "a page leaked");
    all
}

/// Every sampler chooses the same tokens in a batch as alone, also with too few pages for all and with proposed tokens.
#[test]
fn every_sampler_chooses_in_a_batch_as_alone() {
    let (device, tokenizer) = (quickly_built().unwrap(), tokenizer());
    let decoder = llama(&device);
    let jobs = jobs(&tokenizer, 12);
    let expected: Vec<Vec<u32>> = jobs.iter().map(|job| alone(&decoder, job).0).collect();
    let few = EngineOptions { tokens: Some(56), ..OPTIONS };
    for (options, speculation) in
        [(OPTIONS, Speculation::Off), (few, Speculation::Off), (OPTIONS, Speculation::NGrams)]
    {
        let mut engine = Engine::new(&decoder, Some(&tokenizer), Vec::new(), options, speculation).unwrap();
        let ids: Vec<RequestId> = jobs.iter().map(|job| engine.add(job.clone()).unwrap()).collect();
        let heard = run(&mut engine, &ids);
        for (i, (heard, expected)) in heard.iter().zip(&expected).enumerate() {
            assert_eq!(&heard.tokens, expected, "request {i}");
            assert!(heard.logprobs.iter().all(Option::is_none));
        }
        let preempted: usize = heard.iter().map(|heard| heard.end.as_ref().unwrap().1.preempted).sum();
        assert_eq!(preempted > 0, options.tokens == few.tokens);
    }
}

#[cfg(feature = "grammar")]
#[test]
fn texts_of_a_batch_follow_their_grammars() {
    let (device, tokenizer) = (quickly_built().unwrap(), tokenizer());
    let decoder = llama(&device);
    let jobs = jobs(&tokenizer, 30);
    let mut engine = Engine::new(&decoder, Some(&tokenizer), Vec::new(), OPTIONS, Speculation::Off).unwrap();
    let ids: Vec<RequestId> = jobs.iter().map(|job| engine.add(job.clone()).unwrap()).collect();
    let heard = run(&mut engine, &ids);
    let [regex, schema, lark] = &heard[heard.len() - 3..] else { panic!() };
    let parts: Vec<&str> = regex.text.split(',').collect();
    assert!(
        parts[0].len() == 3 && regex.text.bytes().all(|b| b == b',' || b.is_ascii_digit()),
        "{}",
        regex.text
    );
    let ended = |heard: &RequestResult| matches!(heard.end, Some((Finish::Token(END), _)));
    if ended(schema) {
        let value: serde_json::Value = serde_json::from_str(&schema.text).unwrap();
        assert!(value["a"].as_u64().unwrap() < 100, "{}", schema.text);
    }
    assert!(schema.text.starts_with('{') && lark.text.starts_with('a'), "{} {}", schema.text, lark.text);
    assert!(!ended(lark) || lark.text.ends_with('t'), "{}", lark.text);
    // A second sequence with the same sampler starts fresh.
    let again = engine.add(jobs[jobs.len() - 1].clone()).unwrap();
    assert_eq!(run(&mut engine, &[again])[0].text, lark.text);
}

#[test]
fn log_probabilities_are_those_of_the_model() {
    let (device, tokenizer) = (quickly_built().unwrap(), tokenizer());
    let decoder = llama(&device);
    let mut jobs = jobs(&tokenizer, 8);
    let plain: Vec<_> = jobs.iter().map(|job| alone(&decoder, job)).collect();
    for (i, job) in jobs.iter_mut().enumerate() {
        job.logprobs = (i % 3 > 0).then_some([0, 0, 4][i % 3]);
    }
    jobs[4].logprobs = Some(1000);
    let mut engine = Engine::new(&decoder, Some(&tokenizer), Vec::new(), OPTIONS, Speculation::Off).unwrap();
    let ids: Vec<RequestId> = jobs.iter().map(|job| engine.add(job.clone()).unwrap()).collect();
    let heard = run(&mut engine, &ids);
    for ((job, heard), (tokens, logits)) in jobs.iter().zip(&heard).zip(&plain) {
        assert_eq!(&heard.tokens, tokens);
        for ((token, logits), found) in tokens.iter().zip(logits).zip(&heard.logprobs) {
            let Some(most) = job.logprobs else {
                assert!(found.is_none());
                continue;
            };
            let found = found.as_ref().unwrap();
            let sum = logits.iter().map(|v| f64::from(*v).exp()).sum::<f64>().ln();
            let of = |id: u32| (f64::from(logits[id as usize]) - sum) as f32;
            let near = |a: f32, b: f32| (a - b).abs() < 1e-4;
            assert!(near(found.token, of(*token)) && found.top.len() == most.min(VOCAB));
            assert!(found.top.iter().all(|(id, log)| near(*log, of(*id))));
            assert!(found.top.windows(2).all(|pair| pair[0].1 >= pair[1].1));
            let best = (0..VOCAB as u32).map(of).fold(f32::NEG_INFINITY, f32::max);
            assert!(most == 0 || near(found.top[0].1, best));
            if most >= VOCAB {
                let all: f64 = found.top.iter().map(|(_, log)| f64::from(*log).exp()).sum();
                assert!((all - 1.0).abs() < 1e-5, "{all}");
            }
        }
    }
}

#[test]
fn choices_share_the_pages_of_their_prompt() {
    let (device, tokenizer) = (quickly_built().unwrap(), tokenizer());
    let decoder = llama(&device);
    let mut engine = Engine::new(&decoder, Some(&tokenizer), Vec::new(), OPTIONS, Speculation::Off).unwrap();
    let sampling = Sampling { seed: 40, temperature: 1.5, ..Sampling::default() };
    let prompt: Vec<u32> = (0..19).map(|i| (i * 7 + 2) % VOCAB as u32).collect();
    let request = Request { max: Some(9), ..Request::default() };
    let job = Job::new(prompt, Sampler::of_ids(sampling).unwrap(), request);
    // Another request after them is not delayed, and a canceled one delays no request.
    let mut ids = engine.add_choices(job.clone(), 3).unwrap();
    let mut other = job.clone();
    other.prompt[0] = 0;
    ids.push(engine.add(other).unwrap());
    let heard = run(&mut engine, &ids);
    for (i, heard) in heard[..3].iter().enumerate() {
        let own = Job { sampler: job.sampler.clone().seeded(40 + i as u64), ..job.clone() };
        assert_eq!(heard.tokens, alone(&decoder, &own).0, "choice {i}");
        // 19 tokens are four whole pages and three more.
        assert_eq!(heard.end.as_ref().unwrap().1.reused, if i == 0 { 0 } else { 16 }, "choice {i}");
    }
    assert!(heard[0].tokens != heard[1].tokens && heard[1].tokens != heard[2].tokens);
    let ids = engine.add_choices(job.clone(), 3).unwrap();
    engine.cancel(ids[0]);
    assert_eq!(run(&mut engine, &ids[1..])[1].tokens, heard[2].tokens);
    assert!(engine.add_choices(job.clone(), 0).is_err());
    let full = engine.add_choices(job, 65).unwrap_err();
    assert!(full.message().contains("room for 64 requests, but 65 choices"), "{full}");
    assert!(engine.is_idle());
}

#[test]
fn stop_texts_and_counts_are_each_requests_own() {
    let (device, tokenizer) = (quickly_built().unwrap(), tokenizer());
    let decoder = llama(&device);
    let jobs = jobs(&tokenizer, 14);
    let long = |job: &&Job| tokenizer.decode(&alone(&decoder, job).0).unwrap().chars().count() > 8;
    let job = jobs.iter().find(long).unwrap();
    let tokens = alone(&decoder, job).0;
    let whole = tokenizer.decode(&tokens).unwrap();
    let stop: String = whole.chars().skip(4).take(2).collect();
    let mut engine = Engine::new(&decoder, Some(&tokenizer), Vec::new(), OPTIONS, Speculation::Off).unwrap();
    let stops = StopTexts::new(vec![stop.clone()]).unwrap();
    let stopped = Job { request: Request { stops, ..job.request.clone() }, ..job.clone() };
    let ids = [engine.add(job.clone()).unwrap(), engine.add(stopped).unwrap()];
    let heard = run(&mut engine, &ids);
    assert_eq!(heard[0].text, whole);
    assert_eq!(heard[1].text, whole[..whole.find(&stop).unwrap()]);
    assert!(matches!(&heard[1].end, Some((Finish::Text(found), _)) if *found == stop));
    let usage = heard[0].end.as_ref().unwrap().1;
    assert_eq!((usage.prompt, usage.made), (job.prompt.len(), tokens.len()));
}
