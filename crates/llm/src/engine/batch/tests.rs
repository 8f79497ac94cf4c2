//! Compares sequences of an engine with the same sequences alone, from full passes of the model without a cache.

use super::*;
use crate::engine::{CacheType, Request};
use crate::sampler::Sampling;
use netcl_device::Settings;
use netcl_model::decoder::{DecoderConfig, Scaling, Sizes, Span};
use netcl_model::layers::Mode;
use netcl_tensor::random::Generator;
use netcl_tensor::suite::quickly_built;
use netcl_tensor::{DType, Device, Tensor, no_grad};
use std::collections::BTreeMap;

pub(super) const VOCAB: usize = 31;

/// Returns a model whose logits differ clearly.
pub(super) fn decoder(
    device: &Device,
    family: &str,
    seed: u64,
    change: impl Fn(&mut DecoderConfig),
) -> Decoder {
    let kv_heads = if family == "gpt2" { None } else { Some(1) };
    let sizes =
        Sizes { layers: 2, heads: 2, kv_heads, width: 16, context: 48, vocab: VOCAB, ..Sizes::default() };
    let mut config = DecoderConfig::of(family, &sizes).unwrap();
    change(&mut config);
    let decoder = Decoder::new(device, config, DType::F32, seed).unwrap();
    for p in decoder.params().list() {
        p.set_f32(&p.to_vec().unwrap().iter().map(|v| 6.0 * v).collect::<Vec<_>>()).unwrap();
    }
    decoder
}

pub(super) fn llama(device: &Device) -> Decoder {
    decoder(device, "llama", 3, |_| {})
}

pub(super) const OPTIONS: EngineOptions = EngineOptions {
    texts: 4,
    queue: 64,
    tokens: Some(160),
    memory: None,
    page: 4,
    chunk: 6,
    cache: CacheType::Weights,
    share: true,
    drafted: 3,
};

pub(super) fn engine<'a>(decoder: &'a Decoder, options: EngineOptions) -> Engine<'a> {
    Engine::new(decoder, None, vec![7], options, Speculation::Off).unwrap()
}

/// Returns a prompt of `n` tokens; those whose number is a multiple of three have the same prefix. Sampled greedily, on the device, or on the host
/// with penalties.
pub(super) fn job(i: usize, n: usize, max: usize) -> Job {
    let id = |at: usize| ((at * at + if at < 9 && i.is_multiple_of(3) { 0 } else { 3 * i }) % VOCAB) as u32;
    let sampling = match i % 4 {
        0 | 1 => Sampling::greedy(),
        2 => Sampling { seed: i as u64, top_k: 5, temperature: 1.3, ..Sampling::default() },
        _ => Sampling { seed: i as u64, repeat_penalty: 1.3, ..Sampling::default() },
    };
    let request = Request { max: Some(max), ..Request::default() };
    Job::new((0..n).map(id).collect(), Sampler::of_ids(sampling).unwrap(), request)
}

/// Returns the tokens after a prompt, each from the logits of a full pass.
pub(super) fn alone(decoder: &Decoder, job: &Job) -> Vec<u32> {
    let (mut ids, mut sampler) = (job.prompt.clone(), job.sampler.clone());
    sampler.begin(&ids);
    for _ in 0..job.request.max.unwrap() {
        let all = Tensor::from_u32(decoder.params().device(), [1, ids.len()], &ids).unwrap();
        let logits = no_grad(|| decoder.forward(&all, Mode::eval())).unwrap().to_vec().unwrap();
        ids.push(sample(&mut sampler, logits[logits.len() - VOCAB..].to_vec(), &[7], None).unwrap().token);
    }
    ids.split_off(job.prompt.len())
}

/// Tokens and finish reasons, by request.
#[derive(Default)]
pub(super) struct RequestResults {
    pub tokens: BTreeMap<RequestId, Vec<u32>>,
    pub done: BTreeMap<RequestId, (Finish, Usage)>,
}

impl RequestResults {
    pub fn receive(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Token { id, token, .. } => {
                    assert!(!self.done.contains_key(&id), "a token after the end");
                    self.tokens.entry(id).or_default().push(token);
                }
                Event::Text { .. } => panic!("text without a tokenizer"),
                Event::Done { id, finish, usage } => {
                    assert!(self.done.insert(id, (finish, usage)).is_none(), "two ends");
                }
                Event::Failed { error, .. } => panic!("{error}"),
            }
        }
    }
    pub fn of(&self, id: RequestId) -> &[u32] {
        self.tokens.get(&id).map_or(&[], Vec::as_slice)
    }
}

pub(super) fn run(engine: &mut Engine<'_>) -> RequestResults {
    let mut heard = RequestResults::default();
    while !engine.is_idle() {
        heard.receive(engine.step().unwrap());
        assert!(engine.pages.is_consistent(&engine.held()));
    }
    assert_eq!(engine.pages.available(), engine.pages.count(), "a page leaked");
    heard
}

/// Checks that every job is the same as if it ran alone, and returns its usage.
pub(super) fn as_alone(decoder: &Decoder, engine: &mut Engine<'_>, jobs: &[Job]) -> Vec<Usage> {
    let ids: Vec<RequestId> = jobs.iter().map(|job| engine.add(job.clone()).unwrap()).collect();
    let heard = run(engine);
    for (i, (id, job)) in ids.iter().zip(jobs).enumerate() {
        assert_eq!(heard.of(*id), alone(decoder, job), "text {i}");
        assert_eq!(heard.done[id].0, Finish::Length);
        assert_eq!(heard.done[id].1.made, job.request.max.unwrap());
    }
    ids.iter().map(|id| heard.done[id].1).collect()
}

fn jobs() -> Vec<Job> {
    [3, 13, 1, 20, 9, 9, 16, 8].into_iter().enumerate().map(|(i, n)| job(i, n, 5 + 2 * (i % 4))).collect()
}

#[test]
fn texts_of_a_batch_are_as_alone() {
    let device = quickly_built().unwrap();
    for family in ["llama", "gpt2"] {
        let decoder = decoder(&device, family, 3, |_| {});
        let usage = as_alone(&decoder, &mut engine(&decoder, OPTIONS), &jobs());
        assert!(usage.iter().any(|usage| usage.reused > 0) && usage.iter().all(|usage| usage.preempted == 0));
    }
}

#[test]
fn the_simulated_device_batches_as_well() {
    let device = Device::open("sim", &Settings::default()).unwrap();
    let decoder = llama(&device);
    as_alone(&decoder, &mut engine(&decoder, OPTIONS), &jobs()[..3]);
}

/// While a run is read, the next one is already running. A sequence that is canceled meanwhile, one that ends, and one that arrives do not affect the
/// others.
#[test]
fn texts_go_on_behind_runs_that_are_not_read_yet() {
    let decoder = llama(&quickly_built().unwrap());
    let jobs: Vec<Job> = [(0, 24), (1, 11), (2, 22), (4, 26)].map(|(i, max)| job(i, 4 + i, max)).into();
    let mut engine = engine(&decoder, OPTIONS);
    let ids: Vec<RequestId> = jobs.iter().map(|job| engine.add(job.clone()).unwrap()).collect();
    let (mut heard, mut ahead, mut late) = (RequestResults::default(), 0, None);
    while !engine.is_idle() {
        heard.receive(engine.step().unwrap());
        assert!(engine.pages.is_consistent(&engine.held()));
        // Short runs, like on a device with slow steps.
        engine.steps = 2;
        if engine.ahead.is_some() {
            ahead += 1;
            match ahead {
                2 => heard.receive(engine.cancel(ids[3])),
                3 => late = Some(engine.add(job(5, 7, 9)).unwrap()),
                _ => {}
            }
        }
    }
    assert!(ahead > 4 && engine.pages.available() == engine.pages.count());
    for (id, own) in ids.iter().zip(&jobs).take(3) {
        assert_eq!(heard.of(*id), alone(&decoder, own));
    }
    assert_eq!(heard.of(late.unwrap()), alone(&decoder, &job(5, 7, 9)));
    let (cut, whole) = (heard.of(ids[3]), alone(&decoder, &jobs[3]));
    assert!(cut.len() < whole.len() && cut == &whole[..cut.len()]);
}

/// Sequences that wait for a slot do not block others.
#[test]
fn runs_are_ahead_also_while_texts_wait() {
    let decoder = llama(&quickly_built().unwrap());
    let jobs: Vec<Job> = (0..7).map(|i| job(4 * i, 3 + i, 20 + i)).collect();
    let mut engine = engine(&decoder, EngineOptions { texts: 2, ..OPTIONS });
    let ids: Vec<RequestId> = jobs.iter().map(|job| engine.add(job.clone()).unwrap()).collect();
    let (mut heard, mut ahead) = (RequestResults::default(), 0);
    while !engine.is_idle() {
        heard.receive(engine.step().unwrap());
        assert!(engine.pages.is_consistent(&engine.held()));
        engine.steps = 2;
        ahead += usize::from(engine.ahead.is_some() && !engine.waiting.is_empty());
    }
    assert!(ahead > 10 && engine.pages.available() == engine.pages.count(), "{ahead}");
    for (id, own) in ids.iter().zip(&jobs) {
        assert_eq!(heard.of(*id), alone(&decoder, own));
    }
}

/// Short prompts are prefilled together, up to a chunk of tokens; for longer ones, each step prefills a chunk of one.
#[test]
fn a_step_reads_a_chunk_of_prompts() {
    let decoder = llama(&quickly_built().unwrap());
    for (chunk, length, read) in [(64, 5, 4), (64, 20, 3), (6, 5, 1), (16, 8, 2)] {
        let mut engine = engine(&decoder, EngineOptions { chunk, share: false, ..OPTIONS });
        let jobs: Vec<Job> = (0..4).map(|i| job(4 * i + 1, length, 8)).collect();
        for job in &jobs {
            engine.add(job.clone()).unwrap();
        }
        let mut heard = RequestResults::default();
        heard.receive(engine.step().unwrap());
        assert_eq!(heard.tokens.len(), read, "chunk {chunk}, prompts of {length}");
        as_alone(&decoder, &mut engine, &jobs);
    }
}

/// Sequences of equal state share the same steps, the same number as for a single sequence.
#[test]
fn texts_of_equal_state_share_each_step() {
    let decoder = llama(&quickly_built().unwrap());
    let mut steps = Vec::new();
    for texts in 1..=4 {
        let mut engine = engine(&decoder, EngineOptions { chunk: 64, share: false, ..OPTIONS });
        (0..texts).for_each(|_| _ = engine.add(job(1, 5, 21)).unwrap());
        let (mut heard, mut most) = (RequestResults::default(), 0);
        while !engine.is_idle() {
            let events = engine.step().unwrap();
            let tokens = |id: RequestId| {
                events.iter().filter(|e| matches!(e, Event::Token { .. }) && e.id() == id).count()
            };
            let each: Vec<usize> = (1..=texts).map(|id| tokens(RequestId(id))).collect();
            assert!(each.iter().all(|n| *n == each[0]), "{texts} texts: {each:?}");
            heard.receive(events);
            most = most.max(engine.cache.steps(texts as usize));
        }
        let costs = engine.costs();
        assert!(costs.len() == 1 && costs[0].texts == texts as usize && !costs[0].in_turns, "{costs:?}");
        // The launches are those of the captured step and its sampling.
        assert!(costs[0].launches.is_some_and(|launches| launches > 1), "{costs:?}");
        steps.push(most);
    }
    // The first token comes from the prefill.
    assert_eq!(steps, [20; 4]);
}

/// If a step of one sequence takes far less time than one of several, they take turns, and each is the same as if it ran alone.
#[test]
fn texts_take_turns_where_that_is_faster() {
    let decoder = llama(&quickly_built().unwrap());
    let jobs: Vec<Job> = [(0, 24), (1, 26)].map(|(i, max)| job(i, 4 + i, max)).into();
    let mut engine = engine(&decoder, OPTIONS);
    let ids: Vec<RequestId> = jobs.iter().map(|job| engine.add(job.clone()).unwrap()).collect();
    let (mut heard, mut turns) = (RequestResults::default(), Vec::new());
    while !engine.is_idle() {
        engine.steps = 2;
        engine.costs = costs::Costs::default();
        engine.costs.set(1, 1e-3);
        engine.costs.set(2, 1.0);
        let events = engine.step().unwrap();
        let mut told: Vec<RequestId> = events.iter().map(Event::id).collect();
        told.dedup();
        turns.push(told);
        heard.receive(events);
        assert!(engine.pages.is_consistent(&engine.held()));
    }
    for (id, own) in ids.iter().zip(&jobs) {
        assert_eq!(heard.of(*id), alone(&decoder, own));
    }
    let alternate =
        turns.windows(2).filter(|pair| pair[0].len() == 1 && pair[1].len() == 1 && pair[0] != pair[1]);
    assert!(alternate.count() > 8, "{turns:?}");
}

/// Prefixes are prefilled once, including whole prompts, whose last page is copied for the token that is prefilled again.
#[test]
fn texts_that_share_pages_are_as_texts_that_do_not() {
    let decoder = llama(&quickly_built().unwrap());
    let jobs = [job(0, 20, 9), job(0, 20, 9), job(3, 13, 6), job(0, 16, 7)];
    for share in [true, false] {
        let mut engine = engine(&decoder, EngineOptions { share, ..OPTIONS });
        let reused: Vec<[usize; 4]> = (0..2)
            .map(|_| {
                let usage = as_alone(&decoder, &mut engine, &jobs);
                std::array::from_fn(|i| usage[i].reused)
            })
            .collect();
        match share {
            true => assert_eq!(reused[1], [19, 19, 12, 15]),
            false => assert_eq!(reused, [[0; 4]; 2]),
        }
    }
}

/// With too few pages, sequences are prefilled again later, without other effects.
#[test]
fn texts_whose_pages_were_taken_are_as_alone() {
    let decoder = llama(&quickly_built().unwrap());
    for share in [true, false] {
        // The number of steps at a time depends on their cost, and so does the contention: one of the sizes is too small.
        let of = |tokens| {
            let mut engine = engine(&decoder, EngineOptions { tokens: Some(tokens), share, ..OPTIONS });
            as_alone(&decoder, &mut engine, &jobs())
        };
        let usage: Vec<Usage> = [44, 40, 36, 32].into_iter().flat_map(of).collect();
        assert!(usage.iter().any(|usage| usage.preempted > 0), "{usage:?}");
    }
}

#[test]
fn what_does_not_fit_is_refused_or_ends() {
    let decoder = llama(&quickly_built().unwrap());
    let mut engine = engine(&decoder, EngineOptions { tokens: Some(16), queue: 2, ..OPTIONS });
    assert_eq!(engine.longest(), 16);
    let said = |engine: &mut Engine<'_>, job: Job| engine.add(job).unwrap_err().to_string();
    let long = said(&mut engine, job(0, 17, 1));
    assert!(
        long.contains(
            "the prompt has 17 tokens, but a text here has at most 16 (context 48, cache 16 tokens)"
        ),
        "{long}"
    );
    assert!(said(&mut engine, job(0, 0, 1)).contains("the prompt is empty"));
    let mut wrong = job(0, 3, 1);
    wrong.prompt[1] = VOCAB as u32;
    assert!(said(&mut engine, wrong).contains("token 31 of the prompt is outside the vocabulary of 31"));
    let mut sliding = job(0, 3, 1);
    sliding.request.slide = true;
    assert!(said(&mut engine, sliding).contains("cannot be batched"));
    // A sequence that fills the cache, twice: leftovers of the first one block nothing.
    for _ in 0..2 {
        let id = engine.add(job(0, 16, 30)).unwrap();
        let heard = run(&mut engine);
        assert_eq!((heard.of(id).len(), &heard.done[&id].0), (1, &Finish::Context));
    }
    let id = engine.add(job(1, 9, 30)).unwrap();
    let heard = run(&mut engine);
    assert_eq!(heard.of(id), &alone(&decoder, &job(1, 9, 8))[..], "as many as the cache has room for");
    assert_eq!(heard.done[&id].0, Finish::Context);
    for i in 0..2 {
        assert!(!engine.is_full());
        engine.add(job(i, 3, 2)).unwrap();
    }
    assert!(engine.is_full());
    let full = engine.add(job(2, 3, 2)).unwrap_err();
    assert!(
        full.message().contains("the queue is full: 2 requests waiting in addition to 0 texts"),
        "{full}"
    );
    assert_eq!(engine.load().waiting, 2);
    run(&mut engine);
    let Err(e) = Engine::new(&decoder, None, vec![], EngineOptions { page: 0, ..OPTIONS }, Speculation::Off)
    else {
        panic!("pages of nothing")
    };
    assert!(e.message().contains("expected at least 1 of each"));
    let huge = EngineOptions { tokens: Some(1 << 50), ..OPTIONS };
    let Err(e) = Engine::new(&decoder, None, vec![], huge, Speculation::Off) else {
        panic!("a cache of 2^50 tokens")
    };
    assert!(
        e.kind() == netcl_device::ErrorKind::Memory && e.message().contains("which is enough for"),
        "{e}"
    );
}

/// Generates sequences far longer than their window, in a cache that cannot hold one of them. Pages outside of all windows are freed.
#[test]
fn pages_behind_every_window_are_given_back() {
    let decoder = decoder(&quickly_built().unwrap(), "mistral", 3, |config| {
        config.kinds.iter_mut().for_each(|kind| kind.window = Some(7));
    });
    let mut engine = engine(&decoder, EngineOptions { tokens: Some(36), texts: 2, ..OPTIONS });
    assert_eq!(engine.longest(), 48);
    let usage = as_alone(&decoder, &mut engine, &[job(0, 40, 8), job(1, 38, 9), job(2, 2, 44)]);
    assert!(usage.iter().all(|usage| usage.preempted == 0), "{usage:?}");
}

#[test]
fn a_cache_in_8_bits_continues_texts() {
    let decoder = llama(&quickly_built().unwrap());
    let mut engine = engine(&decoder, EngineOptions { cache: CacheType::Q8_0, ..OPTIONS });
    let ids: Vec<RequestId> = jobs().into_iter().map(|job| engine.add(job).unwrap()).collect();
    let heard = run(&mut engine);
    let same = ids.iter().zip(jobs()).filter(|(id, job)| heard.of(**id) == alone(&decoder, job));
    assert!(same.count() >= 4, "texts in 8 bits differ");
    assert!(ids.iter().zip(jobs()).all(|(id, job)| heard.of(*id).len() == job.request.max.unwrap()));
}

#[test]
fn proposed_tokens_change_no_text() {
    let device = quickly_built().unwrap();
    let decoder = llama(&device);
    let other = super::tests::decoder(&device, "llama", 4, |_| {});
    for (speculation, all) in [
        (Speculation::NGrams, None),
        (Speculation::Model(&decoder), Some(true)),
        (Speculation::Model(&other), None),
    ] {
        let mut engine = Engine::new(&decoder, None, vec![7], OPTIONS, speculation).unwrap();
        let jobs: Vec<Job> = (0..5).map(|i| job(i, 4 + 3 * i, 18)).collect();
        let usage = as_alone(&decoder, &mut engine, &jobs);
        let (drafted, accepted) =
            usage.iter().fold((0, 0), |(d, a), usage| (d + usage.drafted, a + usage.accepted));
        assert!(drafted > accepted && (accepted > 0 || all.is_none()), "{drafted} {accepted}");
        if all.is_some() {
            // A model proposes to itself its own greedy choices, except for forbidden tokens.
            assert!(usage[0].accepted * 2 > usage[0].drafted, "{usage:?}");
        }
    }
    let sizes = Sizes { layers: 1, heads: 2, width: 16, vocab: 30, ..Sizes::default() };
    let wrong = Decoder::new(&device, DecoderConfig::of("llama", &sizes).unwrap(), DType::F32, 1).unwrap();
    let refused = Engine::new(&decoder, None, vec![], OPTIONS, Speculation::Model(&wrong));
    assert!(refused.err().unwrap().message().contains("a vocabulary of 30 tokens, the model one of 31"));
}

/// Requests arrive and end at any time, with few pages. No page is lost, every completed sequence is the same as if it ran alone, and a canceled
/// one is the same up to its end.
#[test]
fn a_thousand_schedules_lose_no_page_and_change_no_text() {
    schedules(&decoder(&quickly_built().unwrap(), "llama", 3, |config| config.layers = 1), 1000, 10);
}

pub(super) fn schedules(decoder: &Decoder, rounds: usize, least: usize) {
    let kinds: Vec<Job> = (0..12).map(|i| job(i, 1 + 7 * i % 15, 1 + i % 5)).collect();
    let texts: Vec<Vec<u32>> = kinds.iter().map(|job| alone(decoder, job)).collect();
    let options = EngineOptions { tokens: Some(24), texts: 4, queue: 5, ..OPTIONS };
    let mut engine = engine(decoder, options);
    let mut random = Generator::new(11);
    let mut draw = move |n: usize| random.uniform(1, 0.0, n as f32)[0] as usize % n;
    let (mut heard, mut asked) = (RequestResults::default(), Vec::new());
    let (mut cancelled, mut refused, mut preempted) = (0, 0, 0);
    for _ in 0..rounds {
        for _ in 0..3 + draw(6) {
            match draw(5) {
                0 if !asked.is_empty() => {
                    let (id, _) = asked[asked.len() - 1 - draw(asked.len().min(4))];
                    let events = engine.cancel(id);
                    cancelled += usize::from(!events.is_empty());
                    heard.receive(events);
                }
                4 => heard.receive(engine.step().unwrap()),
                _ => {
                    let kind = draw(kinds.len());
                    match engine.add(kinds[kind].clone()) {
                        Ok(id) => asked.push((id, kind)),
                        Err(e) => {
                            assert!(e.message().contains("the queue is full"), "{e}");
                            refused += 1;
                        }
                    }
                }
            }
            assert!(engine.pages.is_consistent(&engine.held()));
        }
        // Most schedules meet leftovers of the previous one.
        while draw(4) == 0 && !engine.is_idle() || engine.waiting.len() > 3 {
            heard.receive(engine.step().unwrap());
        }
    }
    while !engine.is_idle() {
        heard.receive(engine.step().unwrap());
    }
    assert!(engine.pages.is_consistent(&[]) && engine.pages.available() == engine.pages.count());
    for (id, kind) in &asked {
        let (finish, usage) = &heard.done[id];
        preempted += usage.preempted;
        match finish {
            Finish::Length => assert_eq!(heard.of(*id), texts[*kind]),
            Finish::Stopped => assert!(texts[*kind].starts_with(heard.of(*id))),
            other => panic!("{other:?}"),
        }
    }
    let counts = [asked.len(), cancelled, refused, preempted];
    assert!(counts.iter().all(|count| *count > least), "{counts:?}");
}

/// A sequence whose frequencies change with its length is the same in a batch with shorter and longer ones, with its pages evicted, and alone.
#[test]
fn rotary_angles_of_long_texts_are_their_own() {
    let decoder = decoder(&quickly_built().unwrap(), "llama", 3, |config| {
        config.rotary.iter_mut().for_each(|set| {
            let pairs = set.dims / 2;
            set.scaling = Scaling::LongRope {
                short: vec![1.0; pairs],
                long: (0..pairs).map(|i| 2.0 + i as f64).collect(),
                original: 12,
                magnitude: 1.2,
            };
        });
    });
    let jobs: Vec<Job> =
        [(0, 3), (1, 20), (2, 9), (4, 12), (5, 13), (0, 11)].iter().map(|(i, n)| job(*i, *n, 8)).collect();
    let told = |tokens: usize, texts: usize, jobs: &[Job]| -> Vec<Vec<u32>> {
        let mut engine = engine(&decoder, EngineOptions { tokens: Some(tokens), texts, ..OPTIONS });
        let ids: Vec<RequestId> = jobs.iter().map(|job| engine.add(job.clone()).unwrap()).collect();
        let heard = run(&mut engine);
        assert!(texts == 1 || tokens > 100 || heard.done.values().any(|(_, usage)| usage.preempted > 0));
        ids.iter().map(|id| heard.of(*id).to_vec()).collect()
    };
    let alone: Vec<Vec<u32>> = jobs.iter().flat_map(|job| told(160, 1, std::slice::from_ref(job))).collect();
    // A prompt has the angles of its length; later tokens use the dense cache's steps.
    for (job, tokens) in jobs.iter().zip(&alone).filter(|(job, _)| job.sampler.sampling().temperature == 0.0)
    {
        let mut ids = job.prompt.clone();
        let mut text = decoder.continuation().unwrap();
        for token in tokens {
            let mut logits = text.logits_after(&ids).unwrap();
            logits[7] = f32::NEG_INFINITY;
            assert_eq!(Rules::greedy().choose(&logits, 0), *token, "{} tokens", ids.len());
            ids.push(*token);
        }
    }
    assert_eq!(told(160, 4, &jobs), alone);
    assert_eq!(told(32, 4, &jobs), alone);
}

/// Returns the model with one layer on this device and the others on that one.
fn divided(whole: &Decoder, devices: [&Device; 2]) -> Decoder {
    let config = whole.config().clone();
    let spans = Span::in_order(devices.map(Device::clone).into_iter().zip([1, config.layers - 1]));
    let parts = Decoder::divided(&spans, config, DType::F32, None, BTreeMap::new()).unwrap();
    for (shape, p) in parts.shapes().iter().zip(parts.params().list()) {
        let own = whole.params().get(&shape.name).or(whole.params().get(&shape.pieces[0].0)).unwrap();
        p.set_bytes(&own.to_bytes().unwrap()).unwrap();
    }
    parts
}

/// Pages span all devices: sequences that share, lose and copy them are the same, also with proposed tokens.
#[test]
fn layers_on_several_devices_change_no_text() {
    let [a, b] = [0; 2].map(|_| quickly_built().unwrap());
    for family in ["llama", "gpt2", "gemma2", "mixtral"] {
        let whole = decoder(&a, family, 3, |_| {});
        let parts = divided(&whole, [&a, &b]);
        assert_eq!(parts.spans().count(), 2);
        as_alone(&whole, &mut engine(&parts, OPTIONS), &jobs());
        let few = EngineOptions { tokens: Some(32), ..OPTIONS };
        // Three are admitted at once, and each grows to more than a third of the pages, at any speed.
        let long: Vec<Job> = (0..4).map(|i| job(3 * i + 1, 5, 20)).collect();
        let usage = as_alone(&whole, &mut engine(&parts, few), &long);
        assert!(usage.iter().any(|usage| usage.preempted > 0), "{family}: {usage:?}");
        let draft = Speculation::Model(&whole);
        let mut engine = Engine::new(&parts, None, vec![7], OPTIONS, draft).unwrap();
        let usage = as_alone(&whole, &mut engine, &jobs()[..4]);
        assert!(usage.iter().any(|usage| usage.accepted > 0), "{family}: {usage:?}");
    }
}

#[test]
fn a_simulated_device_has_pages_of_its_layers() {
    let here = quickly_built().unwrap();
    let sim = Device::open("sim", &Settings::default()).unwrap();
    let whole = llama(&here);
    for devices in [[&sim, &here], [&here, &sim]] {
        as_alone(&whole, &mut engine(&divided(&whole, devices), OPTIONS), &jobs()[..3]);
    }
}
