use super::*;
use crate::suite::test_device;

fn normal(seed: u64, n: usize) -> Vec<f32> {
    crate::random::Generator::new(seed).normal(n, 0.0, 3.0)
}

/// Checks that a device keeps the same tokens as the host, from the same logits and words, for any number of wraps of the ring buffer.
#[test]
fn a_state_goes_on_as_the_host_would() {
    goes_on(&test_device().unwrap(), usize::MAX);
}

/// Tests groups of many items, with all accesses to shared memory checked.
#[test]
fn a_state_goes_on_on_the_simulated_device() {
    goes_on(&Device::open("sim", &netcl_device::Settings::default()).unwrap(), 5000);
}

/// Runs vocabularies of up to `most` tokens.
fn goes_on(device: &Device, most: usize) {
    for (texts, vocab, rules, dtype) in [
        (1, 65, vec![SamplingRule::Temperature(0.9)], DType::F32),
        (
            3,
            4100,
            vec![
                SamplingRule::TopK(50),
                SamplingRule::TopP(0.9, 1),
                SamplingRule::MinP(0.01, 2),
                SamplingRule::Temperature(0.8),
            ],
            DType::F16,
        ),
        (2, 33_000, vec![SamplingRule::TopK(1)], DType::Bf16),
        (2, 2300, vec![SamplingRule::Temperature(0.0)], DType::F16),
        (1, 3000, vec![SamplingRule::Temperature(1.7), SamplingRule::TopK(700)], DType::F32),
    ] {
        if vocab > most {
            continue;
        }
        let rules = Rules::new(&rules).unwrap();
        let mut bias = vec![0.0; vocab];
        (bias[1], bias[3], bias[vocab - 1]) = (f32::NEG_INFINITY, 2.0, f32::NEG_INFINITY);
        let by = Chooser::new(device, &rules, texts, vocab, Some(&bias)).unwrap().unwrap();
        let state = Texts::new(device, texts, 4).unwrap();
        state.set(&vec![7; texts], 11).unwrap();
        state.set_count(6).unwrap();
        let mut expected = Vec::new();
        let words: Vec<u32> =
            (0..9 * texts as u32).map(|i| i.wrapping_mul(2_654_435_761) ^ 0x5bd1_e995).collect();
        for turn in 0..9 {
            let word = &words[turn * texts..(turn + 1) * texts];
            state.set_words(6 + turn as u32, word).unwrap();
            let logits =
                Tensor::from_f32(device, [texts, vocab], &normal(turn as u64, texts * vocab), dtype).unwrap();
            let chosen = state.choose(&logits, &by).unwrap().to_u32().unwrap();
            let host = logits.to_vec().unwrap();
            for b in 0..texts {
                let row: Vec<f32> =
                    host[b * vocab..(b + 1) * vocab].iter().zip(&bias).map(|(v, b)| v + b).collect();
                assert_eq!(
                    chosen[b],
                    rules.choose(&row, word[b]),
                    "text {b} of {texts}, {vocab} tokens, turn {turn}"
                );
            }
            assert_eq!(state.tokens().unwrap().to_u32().unwrap(), chosen);
            assert_eq!(state.position().unwrap().to_u32().unwrap(), [12 + turn as u32]);
            expected.extend(chosen);
        }
        let event = device.mark().unwrap();
        assert_eq!(state.made_after(&event, 6 + 5, 4).unwrap(), expected[5 * texts..]);
        assert!(
            state.set_words(0, &vec![0; 5 * texts]).is_err() && state.set(&vec![0; texts + 1], 0).is_err()
        );
    }
}

/// Tests that texts with different positions and rules continue as they would alone.
#[test]
fn texts_of_several_positions_and_rules_go_on_each_as_alone() {
    let (device, vocab) = (test_device().unwrap(), 300);
    let rules = [
        Rules::greedy(),
        Rules::new(&[SamplingRule::TopK(20), SamplingRule::Temperature(0.7)]).unwrap(),
        Rules::new(&[SamplingRule::TopK(60), SamplingRule::TopP(0.8, 1)]).unwrap(),
    ];
    let by = Chooser::by_text(&device, 3, 60, None).unwrap();
    let wide = Rules::new(&[SamplingRule::TopK(61)]).unwrap();
    assert!(by.set(&[&wide; 3], vocab).unwrap_err().message().contains("expected at most 60"));
    by.set(&rules.each_ref(), vocab).unwrap();
    let state = Texts::ragged(&device, 3, 4, 3).unwrap();
    assert!(state.set_each(&[1, 2, 3], &[1]).is_err());
    state.set_each(&[1, 2, 3], &[5, 0, 90]).unwrap();
    state.set_count(2).unwrap();
    for turn in 0..5u32 {
        let words = [turn * 3_000_000, 1 << 31, 4_000_000_000 - turn];
        state.set_words(2 + turn, &words).unwrap();
        let logits =
            Tensor::from_f32(&device, [3, vocab], &normal(turn.into(), 3 * vocab), DType::F32).unwrap();
        let chosen = state.choose(&logits, &by).unwrap().to_u32().unwrap();
        let host = logits.to_vec().unwrap();
        let expected: Vec<u32> =
            (0..3).map(|b| rules[b].choose(&host[b * vocab..(b + 1) * vocab], words[b])).collect();
        assert_eq!(chosen, expected);
        assert_eq!(state.tokens().unwrap().to_u32().unwrap(), expected);
        let places = state.position().unwrap().to_u32().unwrap();
        assert_eq!(places, [5, 0, 90].map(|p| p + turn + 1));
        let event = device.mark().unwrap();
        assert_eq!(state.made_after(&event, 2 + turn, 1).unwrap(), expected);
    }
}
