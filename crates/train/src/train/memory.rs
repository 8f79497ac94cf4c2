//! Memory estimate of a training run, computed from its settings before anything is allocated.

use super::divided;
use super::rule::rule;
use super::uploads::{PREFETCH, Uploads};
use crate::config::TrainConfig;
use netcl_device::{Capabilities, available_memory, human};
use netcl_dist::RelaySettings;
use netcl_model::decoder::{DecoderConfig, Freeze, LayerKind, Lora, Placement, rows_at_a_time};
use netcl_model::layers::Recompute;
use netcl_tensor::ops::linear_cross_entropy::{LinearCrossEntropy, rows_of_head};
use netcl_tensor::{Device, Error, Result};

/// Activations that blocks keep for the backward pass, in elements per token, by origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeptActivations {
    /// Outputs of the norms before attention and MLP.
    pub(super) norms: usize,
    /// Outputs of the MLP's activation function.
    pub(super) activations: usize,
    /// All other activations.
    pub(super) rest: usize,
}

impl KeptActivations {
    /// Returns the sum over all blocks of `model`, with dropout masks if `dropout` is on.
    pub(super) fn of(model: &DecoderConfig, dropout: bool) -> Self {
        let all =
            |of: fn(Self) -> usize| model.over_layers(|i| of(Self::of_block(model, model.kind(i), dropout)));
        Self {
            norms: all(|kept| kept.norms),
            activations: all(|kept| kept.activations),
            rest: all(|kept| kept.rest),
        }
    }
    /// Returns the index of the block with the most activations.
    fn largest(model: &DecoderConfig, dropout: bool) -> usize {
        let kinds = model.kinds.iter().map(|kind| Self::of_block(model, *kind, dropout).all());
        kinds.max().unwrap_or_else(|| Self::of_block(model, LayerKind::default(), dropout).all())
    }
    fn of_block(model: &DecoderConfig, kind: LayerKind, dropout: bool) -> Self {
        let c = model.width;
        let add = |parts: &[usize]| parts.iter().fold(0usize, |sum, n| sum.saturating_add(*n));
        let (before, behind) = (model.placement != Placement::Post, model.placement != Placement::Pre);
        // Activations of the mixer, and two states of the residual stream.
        let mixer = model.mixer_costs(kind).kept;
        let parts = if behind { c.saturating_mul(2) } else { 0 };
        let masks = if dropout { c } else { 0 };
        let (activations, mlp) = match model.mlp.moe.filter(|_| kind.sparse) {
            // Gate and up projections of the chosen experts; the router's logits, weights, and the indices of rows by expert.
            Some(moe) => {
                let pairs = |n: usize| moe.top_k.saturating_mul(n);
                (0, add(&[pairs(moe.hidden).saturating_mul(2), moe.experts, pairs(5)]))
            }
            None => {
                let gate = if model.mlp.gated { model.mlp.hidden } else { 0 };
                (model.mlp.hidden, add(&[model.mlp.hidden, gate]))
            }
        };
        Self {
            norms: if before { c.saturating_mul(2) } else { 0 },
            activations,
            rest: add(&[mixer, c, c, parts, mlp, masks]),
        }
    }
    /// Returns the sum of all parts.
    pub(super) fn all(self) -> usize {
        self.norms.saturating_add(self.activations).saturating_add(self.rest)
    }
}

/// Returns the gradients that are in use at the same time in the backward pass of a block, in elements per token.
fn backward(model: &DecoderConfig) -> usize {
    let maps = if model.mlp.gated { 3 } else { 2 };
    let dense = model.mlp.hidden.saturating_mul(maps).saturating_add(model.width);
    let Some(moe) = model.mlp.moe else { return dense };
    // For each chosen expert: hidden layer, gate and up projection, and its part of the gradient of x.
    let pair = moe.hidden.saturating_mul(4).max(moe.hidden.saturating_mul(2).saturating_add(model.width));
    moe.top_k.saturating_mul(pair).saturating_add(model.width).max(dense)
}

/// Percentage of the estimated activations that a run certainly needs. The rest depends on the kernels chosen for the device.
const CERTAIN_PERCENT: u64 = 75;

/// Memory of a training run in bytes, by purpose. Numbers saturate at `u64::MAX`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Number of parameter elements.
    pub count: u64,
    /// The weights in their storage type.
    pub parameters: u64,
    /// Number of trained elements.
    pub trained: u64,
    /// Gradients of the trained weights, in the storage type.
    pub gradients: u64,
    /// The optimizer's state, and f32 master weights if the storage type is narrower.
    pub optimizer: u64,
    /// Estimate of the activations kept for the backward pass and of temporary buffers of kernels.
    pub activations: u64,
    /// Batches on the device.
    pub inputs: u64,
    /// Batches prefetched on the host.
    pub host: u64,
    /// Host copy of a checkpoint while it is written. Optional: if the host is short of memory, training waits for the disk instead.
    pub checkpoint: u64,
    /// Whether gradients are in use while the next micro-batch runs. Otherwise gradients are allocated as activations are freed, and both
    /// together need only the larger of the two.
    pub gradients_wait: bool,
    /// Gradients of other ranks that are copied to this rank's device to be summed there.
    pub exchange: u64,
    /// Number of ranks.
    pub ranks: usize,
    /// Stage of ZeRO, that is, which state the ranks divide.
    pub zero: u8,
}

/// Returns a saturating product.
fn product(factors: &[usize]) -> u64 {
    factors.iter().fold(1u64, |all, &n| all.saturating_mul(n as u64))
}

fn sum(parts: &[u64]) -> u64 {
    parts.iter().fold(0u64, |all, &n| all.saturating_add(n))
}

/// Returns the bytes of the GGUF file under adapters, whose matrices stay quantized.
fn quantized_bytes(config: &TrainConfig) -> Option<u64> {
    let file = config.init.as_ref().filter(|_| config.lora.is_some())?;
    std::fs::metadata(file).ok().filter(std::fs::Metadata::is_file).map(|facts| facts.len())
}

/// Formats a size for messages; marks a saturated one.
fn size(bytes: u64) -> String {
    if bytes == u64::MAX { "more than 16 EiB".into() } else { human(bytes) }
}

impl MemoryPlan {
    /// Estimates `config` and `model` on a device with these `capabilities`.
    pub fn of(config: &TrainConfig, model: &DecoderConfig, capabilities: &Capabilities) -> Self {
        let dtype = config.dtype;
        let own = model.parameters() as u64;
        let lora = config.lora.as_deref().and_then(|text| Lora::parse(text).ok());
        let frozen = Freeze::new(&config.freeze).map_or(0, |freeze| freeze.elements(model)) as u64;
        let adapters = lora.as_ref().map(|lora| lora.elements(model) as u64);
        let trained = adapters.unwrap_or(own.saturating_sub(frozen));
        let count = own.saturating_add(adapters.unwrap_or(0));
        let of_trained = |bytes: u64| trained.saturating_mul(bytes);
        let batch = product(&[config.rows(), config.context, 2 * 4]);
        let own = quantized_bytes(config).unwrap_or_else(|| own.saturating_mul(dtype.size() as u64));
        let parameters = own.saturating_add(adapters.unwrap_or(0).saturating_mul(dtype.size() as u64));
        let optimizer = of_trained(rule(config).bytes(dtype) as u64);
        // A checkpoint of adapters does not have the model's own weights.
        let saved = adapters.map_or(parameters, |_| of_trained(dtype.size() as u64));
        Self {
            count,
            parameters,
            trained: of_trained(1),
            gradients: of_trained(dtype.size() as u64),
            optimizer,
            activations: activations(config, model, capabilities),
            inputs: Uploads::planned(config.rows(), config.context, config.pack),
            host: batch.saturating_mul((PREFETCH + 2) as u64),
            checkpoint: saved.saturating_add(optimizer),
            gradients_wait: config.grad_accum > 1,
            exchange: 0,
            ranks: 1,
            zero: 0,
        }
    }

    /// Adapts the estimate to one of several ranks, which partition state according to `zero`; `share_memory` is whether they exchange gradients
    /// through shared memory.
    #[must_use]
    pub fn divided_between(self, ranks: usize, zero: u8, share_memory: bool) -> Self {
        if ranks < 2 {
            return self;
        }
        let n = ranks as u64;
        let relay = RelaySettings::default();
        let part = |bytes: u64| bytes.div_ceil(n);
        let others = |bytes: u64| bytes.saturating_mul(n - 1);
        let exchange = match zero {
            _ if !share_memory => 0,
            // Each rank sums everything, or a share of a piece at a time.
            0 if ranks < relay.shares_from => others(self.gradients),
            0 => others(relay.piece as u64),
            _ => others(part(self.gradients)),
        };
        let optimizer = if zero > 0 { part(self.optimizer) } else { self.optimizer };
        if zero > 1 {
            // The part of the sums, in f32 if they are of several passes, and the buffers for gradients.
            let sums =
                if self.gradients_wait { part(self.trained.saturating_mul(4)) } else { part(self.gradients) };
            let width = (self.gradients / self.trained.max(1)).max(1);
            let slots = divided::slots(self.trained, width);
            let exchange = if share_memory { others(part(slots)) } else { 0 };
            let gradients = sums.saturating_add(slots);
            return Self { optimizer, exchange, gradients, ranks, zero, gradients_wait: true, ..self };
        }
        // All gradients are computed before they are exchanged.
        Self { optimizer, exchange, ranks, zero, gradients_wait: true, ..self }
    }

    /// Returns the total device memory.
    pub fn device(&self) -> u64 {
        self.with_activations(self.activations)
    }

    /// Returns a lower bound of [`device`](Self::device): three quarters of the estimated activations are counted.
    pub fn least(&self) -> u64 {
        self.with_activations(self.activations / 100 * CERTAIN_PERCENT)
    }

    fn with_activations(&self, activations: u64) -> u64 {
        let step = match self.gradients_wait {
            true => self.gradients.saturating_add(activations),
            false => self.gradients.max(activations),
        };
        sum(&[self.parameters, self.optimizer, self.exchange, self.inputs, step])
    }

    /// Returns each part with its name, for listings.
    pub fn rows(&self) -> Vec<(&'static str, u64)> {
        let others = (self.exchange > 0).then_some(("gradients of other ranks", self.exchange));
        let all = [
            ("parameters", self.parameters),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("activations", self.activations),
            ("batches on the device", self.inputs),
            ("batches on the host", self.host),
            ("checkpoint on the host while it is written", self.checkpoint),
        ];
        all.into_iter().chain(others).collect()
    }

    /// Compares the estimate with the memory of `device` and of the host.
    ///
    /// # Errors
    /// `Memory` with the memory needed, the memory available, and the options to change.
    pub fn check(&self, device: &Device) -> Result<()> {
        self.fits(device.capabilities(), available_memory())
    }

    /// Does the same with `host` bytes of available host memory, if known.
    fn fits(&self, capabilities: &Capabilities, host: Option<u64>) -> Result<()> {
        let (needed, available, place) = match self.lacking(capabilities, host) {
            Some(lacking) => lacking,
            None => {
                if self.device() > capabilities.global_mem {
                    tracing::warn!(
                        "training takes about {}, {} has {}: it may not fit. {}",
                        size(self.device()),
                        capabilities.id,
                        human(capabilities.global_mem),
                        self.advice(capabilities.global_mem)
                    );
                }
                return Ok(());
            }
        };
        // The part that is certainly needed: no part may be larger than the whole.
        let certain = Self { activations: self.activations / 100 * CERTAIN_PERCENT, ..*self };
        let parts: Vec<_> =
            certain.rows().iter().map(|(name, bytes)| format!("{name} {}", size(*bytes))).collect();
        Err(Error::memory(format!(
            "training takes at least {} of memory, {place} has {} available; nothing was allocated. {} parameters: {}. {}",
            size(needed),
            human(available),
            if self.count >= usize::MAX as u64 { "uncountable".into() } else { self.count.to_string() },
            parts.join(", "),
            self.advice(available)
        )))
    }

    /// Returns whether [`check`](Self::check) succeeds, and the device has room for the whole estimate.
    pub fn has_room(&self, device: &Device) -> bool {
        let capabilities = device.capabilities();
        self.device() <= capabilities.global_mem && self.lacking(capabilities, available_memory()).is_none()
    }

    /// Returns the bytes that are needed at least, the available bytes, and their location, if memory is too small.
    fn lacking<'a>(&self, capabilities: &'a Capabilities, host: Option<u64>) -> Option<(u64, u64, &'a str)> {
        let least = self.least();
        if least > capabilities.global_mem {
            return Some((least, capabilities.global_mem, capabilities.id.as_str()));
        }
        // CPUs and simulated devices use host memory.
        let on_host = capabilities.is_cpu() || capabilities.simulated;
        let from_host = if on_host { least.saturating_add(self.host) } else { self.host };
        let host = host.filter(|host| from_host > *host)?;
        Some((from_host, host, "this host"))
    }

    /// Returns the options that reduce memory the most: those of the largest part first, then those of the other part if it does not fit either.
    fn advice(&self, available: u64) -> String {
        const BATCH: &str = "lower --batch or --context (--grad-accum compensates for smaller batches), or use --recompute block";
        let weights = sum(&[self.parameters, self.gradients, self.optimizer, self.exchange]);
        let rest = sum(&[self.activations / 100 * CERTAIN_PERCENT, self.inputs, self.host]);
        let of_size = match (self.ranks > 1, self.zero) {
            (true, 0) => {
                "use --zero 1, which divides the optimizer's state between ranks, or lower --layers, --width or the vocabulary, or use --dtype bf16"
            }
            (true, 1) => {
                "use --zero 2, which also divides gradients between the ranks, or lower --layers, --width or the vocabulary, or use --dtype bf16"
            }
            _ => {
                "lower --layers, --width or the vocabulary, use --dtype bf16, or divide the layers between devices with --pipeline"
            }
        };
        let both = weights > available && rest > available;
        let (first, second) = match () {
            () if both && rest > weights => {
                (BATCH, format!("; the weights alone do not fit either: {of_size}"))
            }
            () if both => (of_size, format!("; the activations alone do not fit either: {BATCH}")),
            () if weights > available || weights >= rest => (of_size, String::new()),
            () => (BATCH, String::new()),
        };
        let (head, tail) = first.split_at(1);
        format!("{}{tail}{second}", head.to_uppercase())
    }
}

/// Inputs of blocks that are on the device at a time with [`Recompute::Offload`].
const ON_DEVICE: usize = 3;

/// Returns the bytes of the activations that blocks keep from the forward to the backward pass of a batch.
pub(super) fn kept_bytes(config: &TrainConfig, model: &DecoderConfig) -> u64 {
    let rows = config.rows().saturating_mul(config.context);
    let kept = KeptActivations::of(model, config.dropout > 0.0);
    let all = match config.recompute {
        Recompute::None => kept.all(),
        Recompute::Gelu => kept.norms.saturating_add(kept.rest),
        Recompute::Norm => kept.rest,
        Recompute::Block => model.width.saturating_mul(model.layers),
        // Those of the first block and of the last ones, which are on their way to the host.
        Recompute::Offload => model.width.saturating_mul(model.layers.min(ON_DEVICE)),
    };
    // Mean and deviation of two norms, and other statistics that mixers keep, all f32.
    let numbers = |i: usize| model.mixer_costs(model.kind(i)).statistics.saturating_add(4);
    let statistics = product(&[rows, 4, model.over_layers(numbers)]);
    product(&[rows, all, config.dtype.size()]).saturating_add(statistics)
}

/// Returns activations kept for the backward pass, the logits of a chunk of rows, and gradients of activations.
fn activations(config: &TrainConfig, model: &DecoderConfig, capabilities: &Capabilities) -> u64 {
    let rows = config.rows().saturating_mul(config.context);
    let bytes = |rows: usize, elements: usize| product(&[rows, elements, config.dtype.size()]);
    let dropout = config.dropout > 0.0;
    // An MLP takes some of the rows at a time if memory is short.
    let in_parts = config.recompute == Recompute::Offload && !dropout && !model.parallel;
    let part = if in_parts && model.mlp.moe.is_none() { rows_at_a_time(rows).min(rows) } else { rows };
    let maps = if model.mlp.gated { 3 } else { 2 };
    let mlp = if model.mlp.moe.is_some() { 0 } else { model.mlp.hidden.saturating_mul(maps) };
    // The same elements of an MLP are activations, and then gradients.
    let split = |all: usize| bytes(rows, all.saturating_sub(mlp)).saturating_add(bytes(part, mlp));
    let backward = split(backward(model));
    let kept = kept_bytes(config, model);
    let head = head(config, model, capabilities);
    let outside = bytes(rows, model.width.saturating_mul(3));
    let recomputed = config.recompute >= Recompute::Block;
    let largest = match (recomputed, is_quantized(config)) {
        (false, false) => head.max(backward),
        (false, true) => head.max(backward.saturating_add(dense(config, model, model.mlp.hidden))),
        (true, quantized) => {
            let dense = if quantized { dense(config, model, model.mlp.hidden) } else { 0 };
            // A block that is recomputed does not have activations while the head runs.
            head.max(sum(&[split(KeptActivations::largest(model, dropout)), backward, dense]))
        }
    };
    sum(&[kept, largest, outside])
}

/// Returns whether matrices under adapters stay quantized.
fn is_quantized(config: &TrainConfig) -> bool {
    quantized_bytes(config).is_some()
}

/// Returns the bytes of rows of a matrix that are dense during their product.
fn dense(config: &TrainConfig, model: &DecoderConfig, rows: usize) -> u64 {
    product(&[rows, model.width, config.dtype.size()])
}

/// Returns the bytes of the logits of a chunk, of two states of all rows, and of dense rows of a quantized head.
fn head(config: &TrainConfig, model: &DecoderConfig, capabilities: &Capabilities) -> u64 {
    let (rows, dtype) = (config.rows().saturating_mul(config.context), config.dtype);
    let chunk = match model.logits_softcap {
        None => LinearCrossEntropy::default().rows(capabilities, model.vocab, dtype).min(rows.max(1)),
        // The logits of all rows, before and after soft-capping.
        Some(_) => rows.saturating_mul(2),
    };
    let part = match is_quantized(config) {
        true => dense(config, model, rows_of_head(capabilities, [model.vocab, model.width], dtype)),
        false => 0,
    };
    let two = product(&[rows, model.width, 2, dtype.size()]);
    sum(&[product(&[chunk, model.vocab, dtype.size()]), two, part])
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_device::DeviceKind;
    use netcl_tensor::DType;

    fn plan(change: impl FnOnce(&mut TrainConfig)) -> MemoryPlan {
        let mut config = TrainConfig::preset("char-cpu").unwrap();
        change(&mut config);
        MemoryPlan::of(&config, &config.decoder(65).unwrap(), &Capabilities::floor("any:0", DeviceKind::Gpu))
    }

    #[test]
    fn a_plan_counts_what_is_certain_exactly() {
        let plan = plan(|c| c.dtype = DType::Bf16);
        let count = TrainConfig::preset("char-cpu").unwrap().decoder(65).unwrap().parameters() as u64;
        assert_eq!((plan.count, plan.parameters, plan.gradients), (count, 2 * count, 2 * count));
        assert_eq!(plan.optimizer, 12 * count);
        assert!(plan.least() < plan.device() && plan.device() < 64 << 20);
    }

    #[test]
    fn numbers_that_cannot_be_are_refused_with_requested_and_available() {
        let capabilities = Capabilities::floor("any:0", DeviceKind::Gpu);
        let huge = 1_000_000_000_000;
        type Change = fn(&mut TrainConfig);
        let changes: [(Change, &str); 5] = [
            (|c| c.batch = 1_000_000_000_000, "--batch"),
            (|c| c.layers = 1_000_000_000_000, "--layers"),
            (|c| c.width = 1 << 40, "--width"),
            (|c| c.context = 1_000_000_000_000, "--"),
            (|c| (c.layers, c.width, c.batch) = (usize::MAX, usize::MAX - 3, usize::MAX), "more than 16 EiB"),
        ];
        for (change, part) in changes {
            let error = plan(change).fits(&capabilities, Some(1 << 33)).unwrap_err();
            assert_eq!(error.kind(), netcl_device::ErrorKind::Memory);
            for part in [part, "training takes at least", "1.0 GiB available", "nothing was allocated"] {
                assert!(error.message().contains(part), "{error} lacks: {part}");
            }
        }
        let vocab = TrainConfig::preset("demo").unwrap();
        let vocab = MemoryPlan::of(&vocab, &vocab.decoder(huge).unwrap(), &capabilities);
        assert!(vocab.fits(&capabilities, None).unwrap_err().message().contains("vocabulary"));
    }

    /// Formerly the message listed a part of 1.2 TiB of a whole of 938 GiB, and did not name the batch, which was the cause.
    #[test]
    fn no_part_of_the_announced_memory_is_larger_than_the_whole_and_the_batch_is_named() {
        let config = TrainConfig { batch: 512, ..TrainConfig::preset("gpt2-1558m").unwrap() };
        let capabilities = Capabilities::floor("any:0", DeviceKind::Gpu);
        let plan = MemoryPlan::of(&config, &config.decoder(50_304).unwrap(), &capabilities);
        let message = plan.fits(&capabilities, Some(1 << 34)).unwrap_err().to_string();
        for part in ["Lower --batch", "--recompute block", "the weights alone do not fit either", "--layers"]
        {
            assert!(message.contains(part), "{part} is missing: {message}");
        }
        assert!(plan.least() > plan.activations / 100 * CERTAIN_PERCENT);
        assert!(
            message.contains(&format!("activations {}", human(plan.activations / 100 * CERTAIN_PERCENT))),
            "{message}"
        );
    }

    #[test]
    fn a_processor_takes_the_hosts_memory_and_a_card_its_own() {
        let (card, cpu) =
            (Capabilities::floor("any:0", DeviceKind::Gpu), Capabilities::floor("any:1", DeviceKind::Cpu));
        let plan = plan(|_| ());
        let little = plan.host + (1 << 20);
        assert!(plan.least() > 1 << 20);
        plan.fits(&card, Some(little)).unwrap();
        let error = plan.fits(&cpu, Some(little)).unwrap_err();
        assert!(error.message().contains("this host has"), "{error}");
        plan.fits(&cpu, None).unwrap();
        assert!(plan.fits(&card, Some(plan.host - 1)).unwrap_err().message().contains("this host has"));
    }

    #[test]
    fn recomputing_takes_less() {
        let of = |recompute| plan(|c| c.recompute = recompute).activations;
        let all = Recompute::NAMES.map(|(_, recompute)| of(recompute));
        assert!(all.is_sorted_by(|a, b| a > b), "{all:?}");
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod measured;
