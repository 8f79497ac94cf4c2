//! `netcl bench attention --regret N`: random attentions and their gradients.

use super::{Case, Shape};
use crate::bench::Bench;
use crate::bench::choice::{Regrets, axis, drawn, spread};
use netcl::prelude::*;

const MAX_TOKENS: f64 = 8192.0;
const MAX_BATCH: f64 = 16.0;
const MAX_KV_HEADS: f64 = 16.0;
/// Largest head size.
const MAX_SIZE: u64 = 256;
/// Maximum elements of queries, keys, values and results together.
const MAX_ELEMENTS: u64 = 1 << 28;

/// Returns the sizes of attention number n, and whether it is causal: heads of 64 or 128, of any multiple of 8, or of any size from 8 on; grouped or
/// not.
fn shape(seed: u64, n: u64) -> (Shape, bool) {
    let [batch, kv_heads, group, tokens, size, causal] = [0, 1, 2, 3, 4, 5].map(|i| drawn(seed, n, i));
    let high = |bits: u64, count: u64| (bits >> 33) % count;
    let size = match size % 6 {
        0 | 1 => 64 << high(size, 2),
        2 => 8 + high(size, MAX_SIZE - 7),
        _ => 8 * (1 + high(size, MAX_SIZE / 8)),
    };
    let kv_heads = spread(kv_heads, MAX_KV_HEADS);
    let group = if group % 2 == 0 { 1 } else { 2 << high(group, 3) };
    let shape = Shape {
        batch: spread(batch, MAX_BATCH),
        heads: kv_heads * group,
        kv_heads,
        tokens: axis(tokens, MAX_TOKENS),
        size: size as usize,
    };
    (shape, high(causal, 2) == 0)
}

/// Draws random attentions, the same for the same seed, and whether they are causal. Their operations are limited so that a sample is short on the
/// device.
pub fn draw(device: &Device, count: usize, seed: u64) -> Vec<(Shape, bool)> {
    drawn_up_to(if device.capabilities().is_cpu() { 1 << 29 } else { 1 << 40 }, count, seed)
}

/// Draws attentions with at most `most` operations.
pub fn drawn_up_to(most: u64, count: usize, seed: u64) -> Vec<(Shape, bool)> {
    let fits = |(shape, causal): &(Shape, bool)| {
        shape.flops(*causal, false) <= most && shape.elements(false) <= MAX_ELEMENTS
    };
    (0..).map(|n| shape(seed, n)).filter(fits).take(count).collect()
}

/// Times every algorithm on these attentions, drawn from `seed` or given, and on their gradients.
pub fn run(bench: &Bench, shapes: Vec<(Shape, bool)>, seed: u64) -> Result<()> {
    let mut regrets = Regrets::new("shape (B, H, T, D)", "pass");
    for (shape, causal) in shapes {
        let case = Case::new(&bench.device, shape, causal, bench.dtype)?;
        case.choices()?.iter().try_for_each(|choice| regrets.measure(bench, choice))?;
    }
    regrets.finish(bench, "passes of attention", seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_every_kind_and_repeat() {
        let all: Vec<(Shape, bool)> = (0..300).map(|n| shape(7, n)).collect();
        assert!(all == (0..300).map(|n| shape(7, n)).collect::<Vec<_>>());
        assert!(all.iter().all(|(s, _)| (8..=256).contains(&s.size) && (1..=8192).contains(&s.tokens)));
        assert!(all.iter().all(|(s, _)| s.heads.is_multiple_of(s.kv_heads) && s.batch >= 1));
        let share = |f: &dyn Fn(&Shape, bool) -> bool| all.iter().filter(|(s, causal)| f(s, *causal)).count();
        for (what, found) in [
            ("causal", share(&|_, causal| causal)),
            ("full", share(&|_, causal| !causal)),
            ("grouped", share(&|s, _| s.heads > s.kv_heads)),
            ("ungrouped", share(&|s, _| s.heads == s.kv_heads)),
            ("64 or 128", share(&|s, _| s.size == 64 || s.size == 128)),
            ("odd multiples of 8", share(&|s, _| s.size % 16 == 8)),
            ("not multiples of 8", share(&|s, _| s.size % 8 != 0)),
            ("wide", share(&|s, _| s.size > 128)),
            ("short", share(&|s, _| s.tokens < 64)),
            ("long", share(&|s, _| s.tokens > 1000)),
        ] {
            assert!(found > 20, "{what}: {found}");
        }
    }
}
