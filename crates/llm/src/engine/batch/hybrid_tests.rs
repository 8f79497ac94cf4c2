//! Models whose layers have recurrent states, compared with each sequence alone. Pages are shared, copied and evicted, and steps are undone.

use super::tests::{OPTIONS, as_alone, decoder, engine, job, schedules};
use super::*;
use crate::engine::CacheType;
use crate::engine::memory_plan::MemoryPlan;
use netcl_model::decoder::{LayerKind, MOVING_AVERAGE};
use netcl_tensor::DType;
use netcl_tensor::suite::quickly_built;
use std::collections::HashMap;

/// Moving averages with attention in other layers, or only moving averages.
fn hybrid(device: &Device, with_attention: bool) -> Decoder {
    decoder(device, "llama", 3, |config| {
        let attention = config.kind(0);
        let average = LayerKind { mixer: MOVING_AVERAGE, ..LayerKind::default() };
        config.kinds = if with_attention { vec![average, attention] } else { vec![average] };
        config.layers = 3;
    })
}

fn jobs() -> Vec<Job> {
    [3, 13, 1, 20, 9, 9, 16, 8].into_iter().enumerate().map(|(i, n)| job(i, n, 5 + 2 * (i % 4))).collect()
}

#[test]
fn texts_of_a_hybrid_model_are_as_alone() {
    let device = quickly_built().unwrap();
    for with_attention in [true, false] {
        let decoder = hybrid(&device, with_attention);
        for (page, chunk) in [(4, 6), (16, 64), (3, 5)] {
            let options = EngineOptions { page, chunk, ..OPTIONS };
            as_alone(&decoder, &mut engine(&decoder, options), &jobs());
        }
        // Only keys and values are stored in 8 bits.
        let pages = [CacheType::Weights, CacheType::Q8_0].map(|kind| decoder.page_bytes(0..3, 16, kind));
        assert_eq!(pages[1] < pages[0], with_attention, "{pages:?}");
        let config = decoder.config();
        let states: u64 = (0..3).map(|i| config.state(i).bytes(40, DType::F32)).sum();
        assert_eq!(MemoryPlan::new(config.clone(), DType::F32, &HashMap::new()).cache(40), states);
    }
}

/// A text continues from the value at the end of a shared page, or from the one before it if the text ends there.
#[test]
fn recurrent_states_are_shared_with_their_pages() {
    let decoder = hybrid(&quickly_built().unwrap(), true);
    let jobs = [job(0, 20, 9), job(0, 20, 9), job(3, 13, 6), job(0, 16, 7)];
    let mut engine = engine(&decoder, OPTIONS);
    as_alone(&decoder, &mut engine, &jobs);
    let reused: Vec<usize> =
        as_alone(&decoder, &mut engine, &jobs).iter().map(|usage| usage.reused).collect();
    assert_eq!(reused, [19, 19, 12, 15]);
}

#[test]
fn recurrent_states_whose_pages_were_taken_are_read_again() {
    let decoder = hybrid(&quickly_built().unwrap(), true);
    let of = |tokens| {
        let mut engine = engine(&decoder, EngineOptions { tokens: Some(tokens), ..OPTIONS });
        as_alone(&decoder, &mut engine, &jobs())
    };
    let usage: Vec<Usage> = [44, 40, 36, 32].into_iter().flat_map(of).collect();
    assert!(usage.iter().any(|usage| usage.preempted > 0), "{usage:?}");
}

/// Rejected proposals are also undone in recurrent states, including those of the draft model.
#[test]
fn proposed_tokens_are_taken_back() {
    let device = quickly_built().unwrap();
    let (decoder, draft) = (hybrid(&device, true), hybrid(&device, false));
    for speculation in [Speculation::NGrams, Speculation::Model(&decoder), Speculation::Model(&draft)] {
        for page in [3, 4, 16] {
            let options = EngineOptions { page, drafted: MAX_DRAFTED, ..OPTIONS };
            let mut engine = Engine::new(&decoder, None, vec![7], options, speculation).unwrap();
            let jobs: Vec<Job> = (0..5).map(|i| job(i, 4 + 3 * i, 18)).collect();
            let usage = as_alone(&decoder, &mut engine, &jobs);
            let (drafted, accepted) =
                usage.iter().fold((0, 0), |(d, a), usage| (d + usage.drafted, a + usage.accepted));
            assert!(drafted > accepted, "{drafted} {accepted}");
        }
    }
}

#[test]
fn schedules_of_a_hybrid_model_change_no_text() {
    let decoder = hybrid(&quickly_built().unwrap(), true);
    schedules(&decoder, 300, 2);
}
