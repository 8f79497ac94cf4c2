use super::candidates::Candidates;
use super::history::{self, Breakers};
use super::*;
use crate::tokenizer::{TokenKind, Vocab};

/// Returns random numbers, some of them equal, with one impossible token.
fn logits(seed: u64, n: usize) -> Vec<f32> {
    let word = |i: usize, k: usize| random::draw(seed, 0, i as u64)[k];
    let mut all: Vec<f32> =
        (0..n).map(|i| (word(i, 0) % 400) as f32 / 40.0 - 4.0 + (word(i, 1) % 3) as f32).collect();
    all[word(0, 2) as usize % n] = f32::NEG_INFINITY;
    all
}

fn below(seed: u64, i: u64, n: usize) -> usize {
    random::draw(seed ^ 0x5eed, 1, i)[0] as usize % n
}

/// Returns probabilities by token, directly from the definition.
fn softmax(logits: &[f32]) -> Vec<f64> {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = logits.iter().map(|l| (f64::from(*l) - f64::from(best)).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

/// Returns tokens by descending probability, equal ones by id, without impossible ones.
fn order(logits: &[f32]) -> Vec<usize> {
    let mut all: Vec<usize> = (0..logits.len()).filter(|i| logits[*i] != f32::NEG_INFINITY).collect();
    all.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    all
}

fn sorted(tokens: impl IntoIterator<Item = usize>) -> Vec<u32> {
    let mut tokens: Vec<u32> = tokens.into_iter().map(|i| i as u32).collect();
    tokens.sort_unstable();
    tokens
}

fn entropy(p: &[f64]) -> f64 {
    p.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum()
}

#[test]
fn filters_keep_what_their_definitions_say() {
    for seed in 0..300 {
        let n = 2 + below(seed, 0, 300);
        let logits = logits(seed, n);
        let (p, ranked) = (softmax(&logits), order(&logits));
        let kept = |filter: &dyn Fn(&mut Candidates)| {
            let mut candidates = Candidates::new(logits.clone());
            filter(&mut candidates);
            candidates.left()
        };
        let min_keep = below(seed, 1, 4);
        let k = below(seed, 2, n + 5);
        let share = (1 + below(seed, 3, 99)) as f32 / 100.0;
        let expected = if k == 0 { ranked.len() } else { k.max(min_keep) };
        assert_eq!(kept(&|c| c.top_k(k, min_keep)), sorted(ranked.iter().copied().take(expected)));

        // The shortest list of the most likely tokens whose sum reaches the fraction.
        let reaches = |m: usize| ranked[..m].iter().map(|i| p[*i]).sum::<f64>() >= f64::from(share);
        let m = (1..=ranked.len()).find(|m| reaches(*m) && *m >= min_keep).unwrap_or(ranked.len());
        assert_eq!(kept(&|c| c.top_p(share, min_keep)), sorted(ranked[..m].iter().copied()), "top_p {share}");

        let enough =
            |rank: usize, i: usize| p[i] >= f64::from(share) * p[ranked[0]] || rank < min_keep.max(1);
        let expected = ranked.iter().enumerate().filter(|(rank, i)| enough(*rank, **i)).map(|(_, i)| *i);
        assert_eq!(kept(&|c| c.min_p(share, min_keep)), sorted(expected), "min_p {share}");

        let h = entropy(&p);
        let mut typical = ranked.clone();
        typical.sort_by(|a, b| (-p[*a].ln() - h).abs().total_cmp(&(-p[*b].ln() - h).abs()));
        let sum = |m: usize| typical[..m].iter().map(|i| p[*i]).sum::<f64>();
        let m = (1..=typical.len())
            .find(|m| sum(*m) > f64::from(share) && *m >= min_keep)
            .unwrap_or(typical.len());
        let got = kept(&|c| c.typical(share, min_keep));
        // Two tokens that are equally far from the entropy may be in either order; the remaining ones have the same distances.
        let distance = |i: &u32| ((-p[*i as usize].ln() - h).abs() * 1e9).round() as i64;
        let distances = |ids: &[u32]| {
            let mut all: Vec<_> = ids.iter().map(distance).collect();
            all.sort_unstable();
            all
        };
        let same =
            |a: &[i64], b: &[i64]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 2);
        assert!(same(&distances(&got), &distances(&sorted(typical[..m].iter().copied()))), "typical {share}");

        let sigmas = below(seed, 4, 40) as f32 / 10.0;
        let values: Vec<f64> = ranked.iter().map(|i| f64::from(logits[*i])).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let sigma = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt();
        let least = values[0] - f64::from(sigmas) * sigma;
        let expected =
            ranked.iter().copied().filter(|i| sigmas <= 0.0 || f64::from(logits[*i]) >= least - 1e-9);
        assert_eq!(kept(&|c| c.top_n_sigma(sigmas)), sorted(expected), "top_n_sigma {sigmas}");

        let xtc =
            Sampling { xtc_probability: 0.5, xtc_threshold: share / 4.0, min_keep, ..Sampling::default() };
        let over = ranked.iter().filter(|i| p[**i] >= f64::from(xtc.xtc_threshold)).count();
        let out = over.saturating_sub(1);
        let out = if ranked.len() - out >= min_keep { out } else { 0 };
        assert_eq!(kept(&|c| c.xtc(&xtc, 0.49)), sorted(ranked[out..].iter().copied()));
        assert_eq!(kept(&|c| c.xtc(&xtc, 0.5)), sorted(ranked.iter().copied()));
    }
}

#[test]
fn temperature_follows_the_entropy() {
    for seed in 0..100 {
        let n = 2 + below(seed, 0, 60);
        let logits = logits(seed, n);
        for (temperature, range, exponent) in
            [(0.7, 0.0, 1.0), (1.0, 0.5, 1.0), (0.8, 0.8, 2.5), (2.0, 0.0, 1.0), (0.3, 1.0, 0.5)]
        {
            let sampling = Sampling {
                temperature,
                dynatemp_range: range,
                dynatemp_exponent: exponent,
                ..Sampling::default()
            };
            let mut candidates = Candidates::new(logits.clone());
            candidates.temperature(&sampling);
            let count = order(&logits).len();
            let (t, r) = (f64::from(temperature), f64::from(range));
            let (low, high) = ((t - r).max(0.0), t + r);
            let share = entropy(&softmax(&logits)) / (count as f64).ln();
            let t =
                if r > 0.0 && count > 1 { low + (high - low) * share.powf(f64::from(exponent)) } else { t };
            let expected = softmax(&logits.iter().map(|l| (f64::from(*l) / t) as f32).collect::<Vec<_>>());
            let got = softmax(candidates.logits());
            assert!(got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5), "{got:?} {expected:?}");
        }
    }
    let mut candidates = Candidates::new(vec![1.0, 3.0, 3.0, 2.0]);
    candidates.temperature(&Sampling { temperature: 0.0, ..Sampling::default() });
    assert_eq!(candidates.left(), [1]);
    // The temperature is so small that plain quotients are infinite.
    let mut candidates = Candidates::new(vec![1e5, 3e5, -3e5]);
    candidates.temperature(&Sampling { temperature: 1e-37, ..Sampling::default() });
    assert_eq!(candidates.draw(0.999).map(|(token, _)| token), Some(1));
}

#[test]
fn penalties_are_those_of_their_papers() {
    for seed in 0..100 {
        let n = 3 + below(seed, 0, 30);
        let history: Vec<u32> =
            (0..below(seed, 1, 60)).map(|i| below(seed, 10 + i as u64, n) as u32).collect();
        let last_n = [-1, 0, 1, 7, 64][below(seed, 2, 5)];
        let s = Sampling {
            repeat_last_n: last_n,
            repeat_penalty: 1.3,
            frequency_penalty: 0.2,
            presence_penalty: -0.4,
            ..Sampling::default()
        };
        let before = logits(seed, n);
        let mut after = before.clone();
        history::penalties(&mut after, &history, 0, &s);
        let from = if last_n < 0 { 0 } else { history.len().saturating_sub(last_n as usize) };
        for i in 0..n {
            let count = history[from..].iter().filter(|id| **id as usize == i).count();
            let l = f64::from(before[i]);
            let scaled = if l > 0.0 { l / 1.3 } else { l * 1.3 };
            let expected = if count == 0 { l } else { scaled - (0.2 * count as f64 - 0.4) };
            assert!(f64::from(after[i]) == expected || (f64::from(after[i]) - expected).abs() < 1e-5);
        }
    }
}

/// Compares DRY with its definition: the longest repetition that each token would continue, found by brute force.
#[test]
fn dry_is_its_definition() {
    let mut penalised = 0;
    for seed in 0..400 {
        let n = 2 + below(seed, 0, 4);
        let history: Vec<u32> =
            (0..below(seed, 1, 80)).map(|i| below(seed, 10 + i as u64, n) as u32).collect();
        let sets: [&[&[u32]]; 4] = [&[], &[&[0]], &[&[0, 1]], &[&[1, 0, 1], &[0]]];
        let breakers = sets[below(seed, 2, 4)];
        let last_n = [-1, 0, 1, 20, 64][below(seed, 3, 5)];
        let dry =
            Dry { multiplier: 0.8, base: 1.75, allowed_length: below(seed, 4, 4), last_n, breakers: vec![] };
        let mut after = vec![0f32; n];
        history::dry(&mut after, &history, &dry, &Breakers::of(breakers));
        let from = if last_n < 0 { 0 } else { history.len().saturating_sub(last_n as usize) };
        let h = &history[from..];
        // Number of tokens after the last position where a breaker starts; the longest match counts.
        let ends = |at: usize| {
            let fits = breakers.iter().filter(|b| !b.is_empty() && h[at..].starts_with(b)).map(|b| b.len());
            fits.max().map(|len| h.len() - at - len)
        };
        let free = (0..h.len()).rev().find_map(ends).unwrap_or(h.len());
        for token in 0..n as u32 {
            // The tail of `length` tokens also occurs earlier, followed by this token.
            let repeats = |length: usize| {
                let tail = &h[h.len() - length..];
                (length..h.len()).any(|end| h[end] == token && h[end - length..end] == *tail)
            };
            let longest = (0..=free).rev().find(|length| repeats(*length));
            let alone = breakers.contains(&&[token][..]);
            let expected = match longest {
                Some(length) if length >= dry.allowed_length && !alone && free >= dry.allowed_length => {
                    penalised += 1;
                    -0.8f32 * 1.75f32.powi((length - dry.allowed_length) as i32)
                }
                _ => 0.0,
            };
            let got = after[token as usize];
            assert!(
                (got - expected).abs() <= expected.abs() * 1e-5,
                "{h:?} {token} {dry:?} {breakers:?}: {got} {expected}"
            );
        }
    }
    assert!(penalised > 300, "{penalised}");
    // An endless repetition gives a finite penalty.
    let mut logits = vec![0.0; 2];
    let dry = Dry { multiplier: 5.0, base: 4.0, last_n: -1, ..Dry::default() };
    history::dry(&mut logits, &[1; 5000], &dry, &Breakers::default());
    assert!(logits[1] < -1e30 && logits[1].is_finite() && logits[0] == 0.0);
}

#[test]
fn breakers_are_found_across_tokens() {
    let tokens = ["a", "b", "x\n", "\n", "ab", "end", "en", "d", "the en"].map(str::to_owned).to_vec();
    let vocab = Vocab {
        model: "llama".into(),
        scores: vec![0.0; tokens.len() + 1],
        kinds: [vec![TokenKind::Normal; tokens.len()], vec![TokenKind::Unknown]].concat(),
        tokens: [tokens, vec!["<unk>".into()]].concat(),
        unknown: Some(9),
        bos: Some(9),
        eos: Some(9),
        add_space_prefix: Some(false),
        ..Vocab::default()
    };
    let tokenizer = crate::Tokenizer::from_vocab(&vocab).unwrap();
    let breakers = Breakers::new(&["\n".into(), "end".into()], &tokenizer).unwrap();
    let hits = |history: &[u32]| {
        let mut logits = vec![0f32; 10];
        let dry = Dry { multiplier: 1.0, allowed_length: 1, last_n: -1, ..Dry::default() };
        history::dry(&mut logits, history, &dry, &breakers);
        (0..10).filter(|i| logits[*i as usize] != 0.0).collect::<Vec<u32>>()
    };
    // `a b a`: b would continue.
    assert_eq!(hits(&[0, 1, 0]), [1]);
    // The line break is in between.
    assert_eq!(hits(&[0, 1, 3]), [] as [u32; 0]);
    assert_eq!(hits(&[0, 1, 2, 0]), [1]);
    // `the en` and `d` together are a breaker, and nothing repeats after it.
    assert_eq!(hits(&[7, 0, 8, 7]), [] as [u32; 0]);
    assert_eq!(hits(&[7, 0, 4, 7]), [0]);
}

fn sampler(sampling: Sampling) -> Sampler {
    Sampler::with(sampling, Breakers::default()).unwrap()
}

/// Only the draw itself.
fn plain() -> Sampling {
    Sampling { chain: vec![Step::Temperature], temperature: 1.0, ..Sampling::default() }
}

#[test]
fn draws_have_the_probabilities() {
    let logits = vec![0.0, 1.0, -1.0, 2.0, f32::NEG_INFINITY, 0.5];
    let p = softmax(&logits);
    let mut s = sampler(Sampling { seed: 3, ..plain() });
    let mut counts = [0f64; 6];
    let n = 40_000;
    for _ in 0..n {
        counts[s.sample(logits.clone()).unwrap() as usize] += 1.0;
    }
    assert_eq!(counts[4], 0.0);
    // Pearson's statistic of four degrees of freedom is above 18.5 once in a thousand; the seed is fixed.
    let chi: f64 =
        (0..6).filter(|i| *i != 4).map(|i| (counts[i] - n as f64 * p[i]).powi(2) / (n as f64 * p[i])).sum();
    assert!(chi < 18.5, "{chi} {counts:?}");

    // Without the most likely tokens in three of ten draws, independently of the sampled token.
    let xtc =
        Sampling { chain: vec![Step::Xtc], xtc_probability: 0.3, xtc_threshold: 0.1, seed: 8, ..plain() };
    let mut s = sampler(xtc);
    let mut best = 0f64;
    for _ in 0..n {
        best += f64::from(u8::from(s.sample(logits.clone()).unwrap() == 3));
    }
    let (expected, sigma) = (0.7 * p[3], (0.7 * p[3] * (1.0 - 0.7 * p[3]) / f64::from(n)).sqrt());
    assert!((best / f64::from(n) - expected).abs() < 3.3 * sigma, "{best} {expected}");
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let text = |seed: u64, sampling: Sampling| {
        let mut s = sampler(Sampling { seed, ..sampling });
        s.accept(&[1, 2, 3]);
        (0..50).map(|i| s.sample(logits(i, 80)).unwrap()).collect::<Vec<_>>()
    };
    for sampling in [Sampling::default(), Sampling { mirostat: Mirostat::Two, ..Sampling::default() }] {
        assert_eq!(text(5, sampling.clone()), text(5, sampling.clone()));
        assert_ne!(text(5, sampling.clone()), text(6, sampling));
    }
    let best: Vec<u32> = (0..50).map(|i| order(&logits(i, 80))[0] as u32).collect();
    assert_eq!(text(1, Sampling::greedy()), best);
}

#[test]
fn the_chain_has_its_order() {
    // Probabilities 0.5, 0.3, 0.2: the two filters keep two tokens in one order, and one in the other.
    let logits: Vec<f32> = [0.5f32, 0.3, 0.2].iter().map(|p| p.ln()).collect();
    let kept = |chain: Vec<Step>| {
        let s = sampler(Sampling { chain, top_k: 2, top_p: 0.55, temperature: 1.0, ..Sampling::default() });
        let mut candidates = Candidates::new(logits.clone());
        s.sampling.chain.iter().for_each(|step| s.apply(*step, &mut candidates, 0.0));
        candidates.left()
    };
    assert_eq!(kept(vec![Step::TopP, Step::TopK]), [0, 1]);
    assert_eq!(kept(vec![Step::TopK, Step::TopP]), [0]);
    assert_eq!(kept(vec![]), [0, 1, 2]);
    assert_eq!(Step::chain("top_k;top-p; temp").unwrap(), [Step::TopK, Step::TopP, Step::Temperature]);
    let names: Vec<String> = Step::USUAL.iter().map(Step::to_string).collect();
    assert_eq!(names.join(";"), "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature");
    assert_eq!(Step::chain(&names.join(";")).unwrap(), Step::USUAL);
    assert!(
        Step::chain("top_q")
            .unwrap_err()
            .message()
            .contains("unknown sampler \"top_q\"; the samplers are penalties")
    );
    // A penalty after a filter does not restore dropped tokens.
    let mut s = sampler(Sampling {
        chain: vec![Step::TopK, Step::Penalties],
        top_k: 1,
        presence_penalty: 50.0,
        ..Sampling::default()
    });
    s.accept(&[0]);
    assert_eq!(s.sample(logits.clone()).unwrap(), 0);
}

#[test]
fn mirostat_holds_its_target() {
    // A wide distribution; without Mirostat its surprise is 8 bits.
    let wide: Vec<f32> = (1..2000).map(|i| -(i as f32).ln()).collect();
    let p = softmax(&wide);
    for mirostat in [Mirostat::One, Mirostat::Two] {
        for tau in [2.0f32, 4.0] {
            let s =
                Sampling { mirostat, mirostat_tau: tau, temperature: 1.0, seed: 4, ..Sampling::default() };
            let mut s = sampler(s);
            let (mut sum, mut count) = (0.0, 0.0);
            for i in 0..3000 {
                let before = s.mu;
                let token = s.sample(wide.clone()).unwrap() as usize;
                // The cut is at the right position, and the surprise is that of the remaining tokens.
                let left: f64 = match mirostat {
                    Mirostat::Two => {
                        let fits = |p: &f64| -p.log2() <= before;
                        assert!(fits(&p[token]) || token == 0);
                        p.iter().filter(|p| fits(p)).sum()
                    }
                    _ => 0.0,
                };
                if mirostat == Mirostat::Two && left > 0.0 {
                    let surprise = -(p[token] / left).log2();
                    assert!((s.mu - (before - 0.1 * (surprise - f64::from(tau)))).abs() < 1e-6);
                }
                if i >= 500 {
                    sum += f64::from(tau) + (before - s.mu) / 0.1;
                    count += 1.0;
                }
            }
            let mean: f64 = sum / count;
            assert!((mean - f64::from(tau)).abs() < 0.15, "{mirostat:?} {tau}: {mean}");
        }
        // Test one token, and equal tokens.
        let mut s = sampler(Sampling { mirostat, ..Sampling::default() });
        assert_eq!(s.sample(vec![f32::NEG_INFINITY, 0.0]).unwrap(), 1);
        (0..50).for_each(|_| assert!(s.sample(vec![0.0; 7]).unwrap() < 7));
        assert!(s.mu.is_finite());
    }
}

/// Compares Mirostat with a second implementation of the estimate in its paper.
#[test]
fn mirostats_first_algorithm_keeps_what_the_paper_says() {
    for seed in 0..100 {
        let n = 3 + below(seed, 0, 400);
        let logits = logits(seed, n);
        let (p, ranked) = (softmax(&logits), order(&logits));
        let mu = 1.0 + below(seed, 1, 80) as f64 / 10.0;
        let pairs = ranked.windows(2).take(99).enumerate().map(|(i, pair)| {
            let t = ((i as f64 + 2.0) / (i as f64 + 1.0)).ln();
            (t * (p[pair[0]] / p[pair[1]]).ln(), t * t)
        });
        let (both, square) = pairs.fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
        let s = both / square;
        let k = ((s - 1.0) * 2f64.powf(mu) / (1.0 - (n as f64).powf(1.0 - s))).powf(1.0 / s);
        let expected = if k.is_finite() { (k as usize).clamp(1, ranked.len()) } else { ranked.len() };
        let mut candidates = Candidates::new(logits.clone());
        candidates.mirostat_one(mu, n);
        let got = candidates.left().len();
        assert!(got.abs_diff(expected) <= usize::from((k - k.round()).abs() < 1e-6), "{got} {expected} {k}");
    }
}

#[test]
fn biases_and_what_cannot_be() {
    let bias = |logit_bias| sampler(Sampling { logit_bias, ..Sampling::greedy() });
    let logits = vec![1.0, 2.0, 3.0, f32::NEG_INFINITY];
    assert_eq!(bias(vec![(2, f32::NEG_INFINITY)]).sample(logits.clone()).unwrap(), 1);
    assert_eq!(bias(vec![(0, 2.5)]).sample(logits.clone()).unwrap(), 0);
    assert_eq!(bias(vec![(3, 100.0)]).sample(logits.clone()).unwrap(), 2);
    let error = bias(vec![(4, 1.0)]).sample(logits.clone()).unwrap_err();
    assert!(error.message().contains("token 4 is outside the vocabulary of 4"));
    let none = vec![f32::NEG_INFINITY; 4];
    for sampling in [Sampling::default(), Sampling { mirostat: Mirostat::One, ..Sampling::default() }] {
        assert!(sampler(sampling).sample(none.clone()).unwrap_err().message().contains("no token is left"));
    }
    assert!(sampler(plain()).sample(vec![0.0, f32::NAN]).is_err());
    assert!(sampler(plain()).sample(vec![0.0, f32::INFINITY]).is_err());
}

#[test]
fn options_out_of_range_are_named_with_their_range() {
    let d = Sampling::default;
    let cases = [
        (Sampling { temperature: -0.1, ..d() }, "temperature is -0.1; it must be 0 or more"),
        (Sampling { temperature: f32::NAN, ..d() }, "temperature is NaN"),
        (Sampling { temperature: f32::INFINITY, ..d() }, "temperature is inf"),
        (Sampling { dynatemp_range: -1.0, ..d() }, "dynatemp_range"),
        (Sampling { dynatemp_exponent: 0.0, ..d() }, "dynatemp_exponent is 0; it must be above 0"),
        (Sampling { top_p: 0.0, ..d() }, "top_p is 0; it must be above 0 and at most 1"),
        (Sampling { min_p: 1.5, ..d() }, "min_p is 1.5; it must be between 0 and 1"),
        (Sampling { typical_p: -1.0, ..d() }, "typical_p"),
        (Sampling { top_n_sigma: f32::NAN, ..d() }, "top_n_sigma"),
        (Sampling { xtc_probability: 2.0, ..d() }, "xtc_probability"),
        (Sampling { xtc_threshold: -0.5, ..d() }, "xtc_threshold"),
        (Sampling { repeat_penalty: 0.0, ..d() }, "repeat_penalty is 0; it must be above 0"),
        (Sampling { repeat_last_n: -2, ..d() }, "repeat_last_n is -2"),
        (Sampling { frequency_penalty: f32::INFINITY, ..d() }, "frequency_penalty"),
        (Sampling { presence_penalty: f32::NAN, ..d() }, "presence_penalty"),
        (Sampling { dry: Dry { multiplier: -1.0, ..Dry::default() }, ..d() }, "dry_multiplier"),
        (
            Sampling { dry: Dry { base: 0.5, ..Dry::default() }, ..d() },
            "dry_base is 0.5; it must be 1 or more",
        ),
        (Sampling { dry: Dry { last_n: -5, ..Dry::default() }, ..d() }, "dry_last_n"),
        (Sampling { mirostat_tau: 0.0, ..d() }, "mirostat_tau"),
        (Sampling { mirostat_eta: 1.1, ..d() }, "mirostat_eta is 1.1; it must be between 0 and 1"),
        (Sampling { logit_bias: vec![(7, f32::NAN)], ..d() }, "logit_bias of token 7 is NaN"),
    ];
    for (sampling, words) in cases {
        let error = sampling.validate().unwrap_err();
        assert!(error.message().contains(words), "{error}");
    }
    assert!(d().validate().is_ok() && Sampling::greedy().validate().is_ok());
}

/// For any split of a text, the same text is shown and the same stop string is found; shown text is never retracted.
#[test]
fn stop_texts_are_found_across_any_parts() {
    let stops = ["STOP", "</s>", "ab", "bcd", "c", "é!"];
    let texts = [
        "one STOP two",
        "S ST STO",
        "</s",
        "a </s>",
        "xxabcd",
        "bcd",
        "café!",
        "caféb",
        "",
        "aaSTSTOPb",
        "éé!",
    ];
    for text in texts {
        for subset in 1..64u32 {
            let stops: Vec<String> = stops
                .iter()
                .enumerate()
                .filter(|(i, _)| subset >> i & 1 == 1)
                .map(|(_, s)| (*s).to_owned())
                .collect();
            // The first complete stop string, by trying every prefix of the text.
            let ends = text.char_indices().map(|(i, c)| i + c.len_utf8());
            let first = ends
                .filter_map(|end| {
                    stops
                        .iter()
                        .filter(|s| text[..end].ends_with(s.as_str()))
                        .max_by_key(|s| s.len())
                        .map(|s| (end - s.len(), s))
                })
                .next();
            let expected = first.map_or((text, None), |(at, stop)| (&text[..at], Some(stop.as_str())));
            for size in 1..5 {
                let chars: Vec<char> = text.chars().collect();
                let mut finder = StopTexts::new(stops.clone()).unwrap();
                let (mut shown, mut found) = (String::new(), None);
                for part in chars.chunks(size) {
                    let (text, stop) = finder.push(&part.iter().collect::<String>());
                    shown += &text;
                    if let Some(stop) = stop {
                        found = Some(stop.to_owned());
                        break;
                    }
                    // Everything is shown except for a possible start of a stop string.
                    assert!(expected.0.starts_with(&shown) || expected.1.is_none());
                }
                if found.is_none() {
                    shown += &finder.finish();
                }
                assert_eq!((shown.as_str(), found.as_deref()), expected, "{text:?} by {size} {stops:?}");
            }
        }
    }
    assert!(StopTexts::new(vec![String::new()]).is_err());
}

#[test]
fn an_output_ends_for_each_reason() {
    let mut tokens: Vec<String> = (0..256).map(|b| format!("<0x{b:02X}>")).collect();
    let mut kinds = vec![TokenKind::Byte; 256];
    for (token, kind) in [
        ("</s>", TokenKind::Control),
        ("St", TokenKind::Normal),
        ("op", TokenKind::Normal),
        ("▁x", TokenKind::Normal),
    ] {
        tokens.push(token.into());
        kinds.push(kind);
    }
    let vocab = Vocab {
        model: "llama".into(),
        scores: vec![0.0; 260],
        tokens,
        kinds,
        eos: Some(256),
        unknown: Some(256),
        ..Vocab::default()
    };
    let tokenizer = crate::Tokenizer::from_vocab(&vocab).unwrap();
    let run = |ids: &[u32], stops: &[&str], max: Option<usize>, endless: bool| {
        let stops = StopTexts::new(stops.iter().map(|s| (*s).to_owned()).collect()).unwrap();
        let mut output = Output::new(&tokenizer, stops, max);
        if endless {
            output = output.ignoring_ends();
        }
        let mut text = String::new();
        for (n, id) in ids.iter().enumerate() {
            let chunk = output.push(*id).unwrap();
            text += &chunk.text;
            if chunk.finish.is_some() {
                return (text, n + 1, chunk.finish);
            }
        }
        (text, ids.len(), None)
    };
    let smile = [0xF0, 0x9F, 0x98, 0x80];
    assert_eq!(run(&[259, 256, 259], &[], None, false), (" x".into(), 2, Some(Finish::Token(256))));
    assert_eq!(run(&[259, 256, 259], &[], None, true), (" x x".into(), 3, None));
    assert_eq!(
        run(&[259, 257, 258, 259], &["Stop"], None, false),
        (" x".into(), 3, Some(Finish::Text("Stop".into())))
    );
    // Held back until the end shows that no stop string follows.
    assert_eq!(run(&[259, 257, 256], &["Stop"], None, false), (" xSt".into(), 3, Some(Finish::Token(256))));
    assert_eq!(run(&[259, 257, 258], &["Stop"], Some(2), false), (" xSt".into(), 2, Some(Finish::Length)));
    // A character that is cut by the token limit.
    assert_eq!(run(&smile, &["😀"], None, false).2, Some(Finish::Text("😀".into())));
    assert_eq!(run(&smile, &[], Some(3), false), ("\u{fffd}".into(), 3, Some(Finish::Length)));
}

/// Never samples tokens that `generation_config.json` forbids, always or depending on the text so far.
#[test]
fn tokens_that_a_models_files_forbid_are_never_taken() {
    let limits = |limits: Limits| Sampler::of_ids(Sampling { limits, ..Sampling::greedy() }).unwrap();
    // The most likely token is 0, then 1, and so on.
    let falling = || (0..8).map(|i| -(i as f32)).collect::<Vec<f32>>();
    let made = |mut sampler: Sampler, prompt: &[u32], n: usize| -> Vec<u32> {
        sampler.begin(prompt);
        (0..n).map(|_| sampler.sample(falling()).unwrap()).collect()
    };
    let none = Limits::default();
    assert_eq!(made(limits(none.clone()), &[0], 3), [0, 0, 0]);
    assert_eq!(made(limits(Limits { suppressed: vec![0, 1], ..none.clone() }), &[0], 2), [2, 2]);
    assert_eq!(made(limits(Limits { suppressed_first: vec![0], ..none.clone() }), &[0], 3), [1, 0, 0]);
    assert_eq!(made(limits(Limits { bad_words: vec![vec![0, 0]], ..none.clone() }), &[5], 4), [0, 1, 0, 1]);
    // 0 0, then 0 1, 1 0, 0 2 and so on: no pair repeats.
    assert_eq!(made(limits(Limits { no_repeat: 2, ..none.clone() }), &[0], 6), [0, 1, 0, 2, 0, 3]);
    assert_eq!(made(limits(Limits { no_repeat: 1, ..none.clone() }), &[0, 2], 3), [1, 3, 4]);
    let ends = vec![0];
    let least = Limits { least_new: 2, ends: ends.clone(), ..none.clone() };
    assert_eq!(made(limits(least), &[5, 5, 5], 3), [1, 1, 0]);
    assert_eq!(made(limits(Limits { least_length: 4, ends, ..none }), &[5, 5, 5], 3), [1, 0, 0]);
    // Rules that depend on the text so far run on the host.
    assert!(limits(Limits { no_repeat: 3, ..Limits::default() }).rules(8).is_none());
    assert!(limits(Limits { suppressed: vec![1], ..Limits::default() }).rules(8).is_some());
}

#[test]
fn penalties_of_the_answer_alone_leave_the_prompt_and_reach_far_back() {
    let sampling =
        Sampling { temperature: 0.0, presence_penalty: 2.0, repeat_last_n: 2, ..Sampling::default() };
    let first = |answer_alone: bool| {
        let mut sampler = Sampler::of_ids(Sampling { answer_alone, ..sampling.clone() }).unwrap();
        sampler.begin(&[1, 0]);
        sampler.sample(vec![1.0, 0.5, 0.0, 0.0]).unwrap()
    };
    // llama.cpp counts the prompt.
    assert_eq!((first(true), first(false)), (0, 2));
    let mut sampler = Sampler::of_ids(Sampling { answer_alone: true, ..sampling.clone() }).unwrap();
    sampler.begin(&[]);
    let logits = || vec![1.0, 0.9, 0.8, 0.7];
    let all: Vec<u32> = (0..4).map(|_| sampler.sample(logits()).unwrap()).collect();
    assert_eq!(all, [0, 1, 2, 3]);
}
