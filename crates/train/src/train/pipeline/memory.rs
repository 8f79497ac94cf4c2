//! The memory of a stage.

use crate::config::{GraphMode, TrainConfig};
use crate::train::memory::{MemoryPlan, kept_bytes};
use crate::train::rule::rule;
use netcl_device::Capabilities;
use netcl_model::decoder::{DecoderConfig, Freeze};
use std::ops::Range;

/// Estimates the device of `stage` of `stages` with these layers: its weights, gradients and optimizer's state, and the activations of the
/// micro-batches in flight at a time.
pub fn plan_of_stage(
    config: &TrainConfig,
    model: &DecoderConfig,
    capabilities: &Capabilities,
    (layers, stage, stages): (&Range<usize>, usize, usize),
) -> MemoryPlan {
    let last = layers.end == model.layers;
    // The layers as a separate model; only the last stage has logits.
    let own = DecoderConfig {
        layers: layers.len(),
        kinds: if model.kinds.is_empty() {
            Vec::new()
        } else {
            layers.clone().map(|i| model.kind(i)).collect()
        },
        vocab: if last { model.vocab } else { 1 },
        ..model.clone()
    };
    let plan = MemoryPlan::of(&TrainConfig { freeze: Vec::new(), ..config.clone() }, &own, capabilities);
    let live = (stages - stage).min(config.grad_accum as usize).max(1);
    let kept = kept_bytes(config, &own);
    let count = |frozen: Option<&Freeze>| {
        let counts = model.shapes_of(layers.clone()).filter(|s| frozen.is_none_or(|f| f.takes(s)));
        counts.fold(0u64, |sum, shape| sum.saturating_add(shape.count() as u64))
    };
    let freeze = Freeze::new(&config.freeze).unwrap_or_default();
    let (all, trained) = (count(None), count(None).saturating_sub(count(Some(&freeze))));
    let size = config.dtype.size() as u64;
    let state = rule(config).bytes(config.dtype) as u64;
    let whole = MemoryPlan::of(config, model, capabilities);
    // Captured passes have separate buffers; eager passes share the buffers that are in use only within a pass.
    let another = if config.graph_mode() == GraphMode::Off { kept } else { plan.activations };
    MemoryPlan {
        count: all,
        parameters: all.saturating_mul(size),
        gradients: trained.saturating_mul(size),
        optimizer: trained.saturating_mul(state),
        activations: plan.activations.saturating_add(another.saturating_mul(live as u64 - 1)),
        // Tokens of the micro-batches that are here.
        inputs: product(&[config.batch, config.context, 8, live]),
        // The first rank writes the whole checkpoint.
        checkpoint: if stage == 0 { whole.checkpoint } else { 0 },
        gradients_wait: true,
        ..plan
    }
}

fn product(factors: &[usize]) -> u64 {
    factors.iter().fold(1u64, |all, &n| all.saturating_mul(n as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_device::DeviceKind;

    #[test]
    fn stages_have_the_model_once_and_the_first_most_activations() {
        let preset = TrainConfig::preset("gpt2-124m").unwrap();
        let config = TrainConfig { grad_accum: 8, graph: GraphMode::Off, ..preset };
        let model = TrainConfig { tied: Some(false), ..config.clone() }.decoder(50_304).unwrap();
        let capabilities = Capabilities::floor("any:0", DeviceKind::Gpu);
        let whole = MemoryPlan::of(&config, &model, &capabilities);
        let spans: Vec<Range<usize>> = (0..4).map(|i| 3 * i..3 * i + 3).collect();
        let plan = |i: usize| plan_of_stage(&config, &model, &capabilities, (&spans[i], i, 4));
        let sum = |of: fn(&MemoryPlan) -> u64| (0..4).map(|i| of(&plan(i))).sum::<u64>();
        assert_eq!(sum(|p| p.parameters), whole.parameters);
        assert_eq!(sum(|p| p.optimizer), whole.optimizer);
        assert_eq!(sum(|p| p.gradients), whole.gradients);
        // With equal layers, the first stage keeps four micro-batches, the third two.
        let kept = kept_bytes(&config, &DecoderConfig { layers: 3, ..model.clone() });
        assert_eq!(plan(0).activations - plan(2).activations, 2 * kept);
        // One micro-batch does not fill a pipeline.
        let one = TrainConfig { grad_accum: 1, ..config.clone() };
        let single = plan_of_stage(&one, &model, &capabilities, (&spans[0], 0, 4));
        assert_eq!(plan(0).activations - single.activations, 3 * kept);
        // Each captured pass has all of its buffers.
        let captured = TrainConfig { graph: GraphMode::Auto, ..config.clone() };
        let captured = plan_of_stage(&captured, &model, &capabilities, (&spans[0], 0, 4));
        assert_eq!(captured.activations, 4 * single.activations);
    }

    /// A tied embedding is in two stages.
    #[test]
    fn a_tied_embedding_counts_where_it_is() {
        let config = TrainConfig {
            freeze: vec!["transformer.h.0.*".into()],
            ..TrainConfig::preset("gpt2-124m").unwrap()
        };
        let model = config.decoder(50_304).unwrap();
        let capabilities = Capabilities::floor("any:0", DeviceKind::Gpu);
        let whole = MemoryPlan::of(&config, &model, &capabilities);
        let plan = |i: usize| plan_of_stage(&config, &model, &capabilities, (&(6 * i..6 * i + 6), i, 2));
        let table = 50_304 * 768;
        assert_eq!(plan(0).count + plan(1).count, whole.count + table);
        let size = config.dtype.size() as u64;
        assert_eq!(plan(0).gradients + plan(1).gradients, whole.gradients + table * size);
    }
}
