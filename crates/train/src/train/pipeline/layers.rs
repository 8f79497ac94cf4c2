//! Divides layers between stages so that the slowest stage is as fast as possible.

use netcl_model::decoder::DecoderConfig;
use netcl_tensor::{Error, Result};
use std::ops::Range;

/// Maximum number of layers to divide: the search takes the square of their number.
const MAX_LAYERS: usize = 4096;

/// Returns the floating-point operations per token of one training step of a stage with these layers, in sequences of the whole context; the head
/// belongs to the last one. An embedding is a lookup and counts as zero.
pub fn stage_flops(config: &DecoderConfig, layers: &Range<usize>) -> f64 {
    let head = if layers.end == config.layers { head_flops(config) } else { 0.0 };
    layers.clone().map(|i| config.layer_flops(i, config.context)).sum::<f64>() + head
}

fn head_flops(config: &DecoderConfig) -> f64 {
    6.0 * config.vocab as f64 * config.width as f64
}

/// Returns the layers of each stage, from the floating-point operations of layers and head and the `speeds` of the stages' devices, in order. It
/// minimizes the time of the slowest stage. If several divisions are equal, later stages get more layers, because earlier ones keep the activations
/// of more micro-batches.
///
/// # Errors
/// `Format` for more stages than layers, or a speed that is not positive.
pub fn divided(config: &DecoderConfig, speeds: &[f64]) -> Result<Vec<Range<usize>>> {
    let (layers, stages) = (config.layers, speeds.len());
    if stages == 0 || stages > layers || !speeds.iter().all(|speed| *speed > 0.0 && speed.is_finite()) {
        return Err(Error::format(format!(
            "--pipeline {stages} for a model of {layers} layers: a stage needs at least one layer; use at most {layers} stages"
        )));
    }
    if layers > MAX_LAYERS {
        return Err(Error::unsupported(format!(
            "--pipeline for {layers} layers; at most {MAX_LAYERS} can be divided"
        )));
    }
    let mut sums = vec![0.0];
    for i in 0..layers {
        sums.push(sums[i] + config.layer_flops(i, config.context));
    }
    let head = head_flops(config);
    let time = |stage: usize, from: usize, to: usize| {
        let head = if to == layers { head } else { 0.0 };
        (sums[to] - sums[from] + head) / speeds[stage]
    };
    // best[to]: for the first stages with the layers before `to`, the time of the slowest, and the start of the last of them.
    let mut best: Vec<Vec<(f64, usize)>> = vec![(0..=layers).map(|to| (time(0, 0, to), 0)).collect()];
    for stage in 1..stages {
        let before = &best[stage - 1];
        let of = |to: usize| {
            let ways = (stage..to).map(|from| (before[from].0.max(time(stage, from, to)), from));
            // The first of equal divisions: its last stage has the most layers.
            ways.fold((f64::INFINITY, stage), |least, way| {
                // Differences due to the order of float sums do not count.
                if way.0 < least.0 * (1.0 - 1e-9) { way } else { least }
            })
        };
        best.push((0..=layers).map(of).collect());
    }
    let (mut end, mut spans) = (layers, Vec::with_capacity(stages));
    for stage in (0..stages).rev() {
        let start = best[stage][end].1;
        spans.push(start..end);
        end = start;
    }
    spans.reverse();
    Ok(spans)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TrainConfig;

    fn model(layers: usize, vocab: usize) -> DecoderConfig {
        TrainConfig { layers, ..TrainConfig::preset("gpt2-124m").unwrap() }.decoder(vocab).unwrap()
    }

    fn slowest(config: &DecoderConfig, spans: &[Range<usize>], speeds: &[f64]) -> f64 {
        spans.iter().zip(speeds).map(|(s, speed)| stage_flops(config, s) / speed).fold(0.0, f64::max)
    }

    /// Returns every way to divide this many layers between stages.
    fn ways(layers: Range<usize>, stages: usize) -> Vec<Vec<Range<usize>>> {
        if stages == 1 {
            return vec![vec![layers]];
        }
        let cut = layers.start + 1..=layers.end - (stages - 1);
        let with = |at: usize| {
            let rest = ways(at..layers.end, stages - 1);
            rest.into_iter().map(move |rest| std::iter::once(layers.start..at).chain(rest).collect())
        };
        cut.flat_map(with).collect()
    }

    #[test]
    fn the_slowest_stage_is_as_fast_as_can_be() {
        for (layers, vocab) in [(6, 64), (7, 64), (9, 50_304), (12, 50_304)] {
            let config = model(layers, vocab);
            for speeds in [vec![1.0], vec![1.0; 2], vec![1.0; 3], vec![3.0, 1.0], vec![1.0, 0.2, 2.0, 1.0]] {
                let spans = divided(&config, &speeds).unwrap();
                assert!(spans.iter().all(|s| !s.is_empty()) && spans.len() == speeds.len());
                assert!(spans.windows(2).all(|pair| pair[0].end == pair[1].start));
                assert_eq!((spans[0].start, spans[spans.len() - 1].end), (0, layers));
                let all = ways(0..layers, speeds.len());
                let least = all.iter().map(|w| slowest(&config, w, &speeds)).fold(f64::INFINITY, f64::min);
                let found = slowest(&config, &spans, &speeds);
                assert!(found <= least * (1.0 + 1e-6), "{spans:?}: {found}, {least} is possible");
            }
        }
    }

    #[test]
    fn the_head_counts_as_layers() {
        // A head of 50304 tokens takes the time of 4.9 layers of GPT-2 with their attention over 1024 tokens: 8 and 8.9 of them.
        assert_eq!(divided(&model(12, 50_304), &[1.0; 2]).unwrap(), [0..8, 8..12]);
        assert_eq!(divided(&model(12, 64), &[1.0; 3]).unwrap(), [0..4, 4..8, 8..12]);
    }

    #[test]
    fn more_stages_than_layers_are_refused() {
        let text = divided(&model(2, 64), &[1.0; 3]).unwrap_err().to_string();
        assert!(text.contains("--pipeline 3") && text.contains("2 layers"), "{text}");
    }

    #[test]
    fn all_stages_together_are_the_model() {
        let config = model(12, 50_304);
        let spans = divided(&config, &[1.0; 3]).unwrap();
        let sum: f64 = spans.iter().map(|s| stage_flops(&config, s)).sum();
        assert!((sum / config.flops(1, config.context) - 1.0).abs() < 1e-9);
    }
}
