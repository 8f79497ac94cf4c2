//! Time slices: waiting order, and pauses that change no sequence.

use super::tests::{OPTIONS, RequestResults, alone, as_alone, engine, job, llama, run};
use super::*;
use netcl_tensor::random::Generator;
use netcl_tensor::suite::quickly_built;
use std::collections::BTreeMap;

/// Forty long sequences in four slots.
const SEQUENCES: usize = 40;
const SEQUENCE_TOKENS: usize = 40;

fn roomy(texts: usize) -> EngineOptions {
    EngineOptions { texts, tokens: Some(SEQUENCES * 48), ..OPTIONS }
}

/// Single steps of at most two tokens per sequence, like on a device with slow steps.
fn step(engine: &mut Engine<'_>, heard: &mut RequestResults) {
    engine.steps = 2;
    heard.receive(engine.step().unwrap());
    assert!(engine.pages.is_consistent(&engine.held()));
}

#[test]
fn many_long_texts_do_not_delay_the_next_request() {
    let decoder = llama(&quickly_built().unwrap());
    let all = |heard: &RequestResults| heard.tokens.values().map(Vec::len).sum::<usize>();
    // The next request arrives while most of them wait for their first slice, and after all have had one.
    for (begun, most) in [(1, SEQUENCES * 12), (SEQUENCES, 4 * 40)] {
        let (mut engine, mut heard) = (engine(&decoder, roomy(4)), RequestResults::default());
        (0..SEQUENCES).for_each(|i| _ = engine.add(job(4 * i, 3, SEQUENCE_TOKENS)).unwrap());
        while heard.tokens.len() < begun {
            step(&mut engine, &mut heard);
        }
        let (before, own) = (all(&heard), job(1, 5, 6));
        assert!(before < SEQUENCES * SEQUENCE_TOKENS / 2, "{before} tokens");
        let next = engine.add(own.clone()).unwrap();
        while heard.of(next).is_empty() {
            step(&mut engine, &mut heard);
        }
        let meanwhile = all(&heard) - before;
        assert!(
            meanwhile < most,
            "{meanwhile} of {} tokens came before the first one",
            SEQUENCES * SEQUENCE_TOKENS
        );
        while !heard.done.contains_key(&next) {
            step(&mut engine, &mut heard);
        }
        assert_eq!(heard.of(next), alone(&decoder, &own));
        assert!(all(&heard) - before < 2 * most, "its end was late");
    }
}

#[test]
fn texts_are_paused_only_while_others_wait() {
    let decoder = llama(&quickly_built().unwrap());
    let mut engine = engine(&decoder, roomy(4));
    (0..4).for_each(|i| _ = engine.add(job(i, 3, SEQUENCE_TOKENS)).unwrap());
    run(&mut engine);
    assert_eq!(engine.admitted, 4);
}

/// Sequences of equal state are paused together: in total they take as many steps as in consecutive groups.
#[test]
fn a_pause_loses_no_step() {
    let decoder = llama(&quickly_built().unwrap());
    let options = EngineOptions { chunk: 64, share: false, ..roomy(4) };
    let (mut engine, mut heard) = (engine(&decoder, options), RequestResults::default());
    (0..8).for_each(|_| _ = engine.add(job(1, 5, SEQUENCE_TOKENS)).unwrap());
    while !engine.is_idle() {
        step(&mut engine, &mut heard);
    }
    assert!(engine.admitted > 8);
    // The first token of each comes from the prefill.
    assert_eq!(engine.cache.steps(4), 2 * (SEQUENCE_TOKENS - 1));
}

/// Paused texts equal texts that run alone, with pages for all and with so few that paused texts lose theirs.
#[test]
fn paused_texts_are_as_alone() {
    let decoder = llama(&quickly_built().unwrap());
    let jobs: Vec<Job> = (0..7).map(|i| job(i, 3 + 2 * i, 25 + i)).collect();
    for (texts, tokens) in [(2, 1000), (2, 120), (3, 64), (1, 48)] {
        let options = EngineOptions { texts, tokens: Some(tokens), ..OPTIONS };
        let mut engine = engine(&decoder, options);
        let usage = as_alone(&decoder, &mut engine, &jobs);
        assert!(engine.admitted > jobs.len(), "{tokens} tokens: no text was paused");
        let lost = usage.iter().any(|usage| usage.preempted > 0);
        assert_eq!(lost, tokens < 1000, "{tokens} tokens: {usage:?}");
    }
}

/// Alone in their steps, sequences have the same bits with and without pauses.
#[test]
fn pauses_change_no_bit() {
    let decoder = llama(&quickly_built().unwrap());
    let jobs: Vec<Job> = (0..4).map(|i| Job { logprobs: Some(3), ..job(i, 3 + 4 * i, 25 + i) }).collect();
    let told = |engine: &mut Engine<'_>| {
        let mut told = BTreeMap::<RequestId, Vec<(u32, Logprobs)>>::new();
        while !engine.is_idle() {
            for event in engine.step().unwrap() {
                if let Event::Token { id, token, logprobs, .. } = event {
                    told.entry(id).or_default().push((token, logprobs.unwrap()));
                }
            }
        }
        told
    };
    let options = EngineOptions { share: false, ..roomy(1) };
    let (mut one, mut paused) = (engine(&decoder, options), engine(&decoder, options));
    let mut expected = BTreeMap::new();
    for job in &jobs {
        one.add(job.clone()).unwrap();
        expected.extend(told(&mut one));
    }
    jobs.iter().for_each(|job| _ = paused.add(job.clone()).unwrap());
    assert_eq!(told(&mut paused), expected);
    assert!(one.admitted == jobs.len() && paused.admitted > 2 * jobs.len(), "{}", paused.admitted);
}

/// Short requests that arrive constantly are admitted before a long sequence, but not forever.
#[test]
fn a_long_text_ends_although_short_ones_come_all_the_time() {
    let decoder = llama(&quickly_built().unwrap());
    let (mut engine, mut heard) = (engine(&decoder, roomy(1)), RequestResults::default());
    let long = engine.add(job(0, 3, SEQUENCE_TOKENS)).unwrap();
    let mut others = 0;
    while !heard.done.contains_key(&long) {
        while engine.waiting.len() < 4 {
            engine.add(job(4 * others + 1, 4, 9)).unwrap();
            others += 1;
        }
        step(&mut engine, &mut heard);
        assert!(others < 60, "{} tokens after {others} requests", heard.of(long).len());
    }
    assert_eq!(heard.of(long), alone(&decoder, &job(0, 3, SEQUENCE_TOKENS)));
    assert!(others > 8, "{others}");
}

/// Long sequences arrive and end at any time, with few pages: no page is lost, and every completed sequence is the same as if it ran alone.
#[test]
fn schedules_with_pauses_lose_no_page_and_change_no_text() {
    let decoder = llama(&quickly_built().unwrap());
    let kinds: Vec<Job> = (0..8).map(|i| job(i, 1 + 7 * i % 15, 3 + 5 * (i % 7))).collect();
    let texts: Vec<Vec<u32>> = kinds.iter().map(|job| alone(&decoder, job)).collect();
    let mut random = Generator::new(5);
    let mut draw = move |n: usize| random.uniform(1, 0.0, n as f32)[0] as usize % n;
    let (mut paused, mut preempted) = (0, 0);
    for tokens in [52, 100, 200] {
        let options = EngineOptions { tokens: Some(tokens), texts: 3, queue: 9, ..OPTIONS };
        let (mut engine, mut heard) = (engine(&decoder, options), RequestResults::default());
        let mut asked: Vec<(RequestId, usize)> = Vec::new();
        for _ in 0..400 {
            match draw(8) {
                0 if !asked.is_empty() => {
                    let (id, _) = asked[asked.len() - 1 - draw(asked.len().min(6))];
                    heard.receive(engine.cancel(id));
                }
                1 | 2 if !engine.is_full() => {
                    let kind = draw(kinds.len());
                    asked.push((engine.add(kinds[kind].clone()).unwrap(), kind));
                }
                _ => step(&mut engine, &mut heard),
            }
            assert!(engine.pages.is_consistent(&engine.held()));
            paused += engine.waiting.iter().filter(|text| !text.pages.is_empty()).count();
        }
        while !engine.is_idle() {
            step(&mut engine, &mut heard);
        }
        assert_eq!(engine.pages.available(), engine.pages.count(), "a page leaked");
        for (id, kind) in &asked {
            let (finish, usage) = &heard.done[id];
            preempted += usage.preempted;
            match finish {
                Finish::Length => assert_eq!(heard.of(*id), texts[*kind]),
                Finish::Stopped => assert!(texts[*kind].starts_with(heard.of(*id))),
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(paused > 10 && preempted > 10, "{paused} {preempted}");
}
