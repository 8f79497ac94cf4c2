//! The shape of a GPT, what follows from it, and what it must satisfy.

use crate::layers::Activation;
use netcl_device::{available_memory, human};
use netcl_tensor::{DType, Device, Error, Result};

/// Heads are at most this wide: the fused attention keeps one head's row in registers or local memory.
const MAX_HEAD: usize = 256;
/// Sizes are at most this large, so that a few of them multiplied with small numbers never overflow.
pub(super) const MAX_SIZE: usize = i32::MAX as usize;

/// Shape of a GPT.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GptConfig {
    /// Blocks.
    pub layers: usize,
    /// Attention heads; divides `width`.
    pub heads: usize,
    /// Width C.
    pub width: usize,
    /// Longest sequence T.
    pub context: usize,
    /// Vocabulary V.
    pub vocab: usize,
    /// Whether linear maps and norms have biases.
    pub bias: bool,
    /// Epsilon of the norms.
    pub eps: f32,
    /// What is not as in GPT-2 itself.
    pub variant: Variant,
}

/// Where a model of GPT-2's architecture differs from GPT-2; the default is GPT-2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Variant {
    /// Width of the MLP; four times the model's where absent.
    pub inner: Option<usize>,
    /// Between the MLP's maps.
    pub activation: Activation,
    /// Whether the head is the token table, instead of a matrix of its own.
    pub tied: bool,
    /// Whether attention's scores are divided by the square root of the head size.
    pub scaled: bool,
    /// Whether they are divided by the number of the block, from 1.
    pub scaled_by_layer: bool,
}

impl Default for Variant {
    fn default() -> Self {
        Self {
            inner: None,
            activation: Activation::GeluTanh,
            tied: true,
            scaled: true,
            scaled_by_layer: false,
        }
    }
}

impl Variant {
    /// The factor on the attention scores of the `index`-th block (from 0) with heads of `size`; `None` for the usual `1/√size`.
    pub fn attention_scale(&self, index: usize, size: usize) -> Option<f32> {
        if self.scaled && !self.scaled_by_layer {
            return None;
        }
        let root = if self.scaled { (size as f64).sqrt() } else { 1.0 };
        let number = if self.scaled_by_layer { (index + 1) as f64 } else { 1.0 };
        Some((1.0 / (root * number)) as f32)
    }
}

impl GptConfig {
    /// Width of the MLPs.
    pub fn inner(&self) -> usize {
        self.variant.inner.unwrap_or_else(|| self.width.saturating_mul(4))
    }

    /// Number of parameters; a tied head counts once. Shapes that no memory holds give `usize::MAX`.
    pub fn parameters(&self) -> usize {
        let (c, inner, bias) = (self.width, self.inner(), usize::from(self.bias));
        let maps = c.saturating_mul(4).saturating_add(inner.saturating_mul(2)).saturating_mul(c);
        // Two norms, queries, keys and values, and the two projections back; then the MLP's first map.
        let vectors = c.saturating_mul(2 + 7 * bias).saturating_add(inner.saturating_mul(bias));
        let block = maps.saturating_add(vectors);
        let rows = self.vocab.saturating_mul(if self.variant.tied { 1 } else { 2 });
        let tables = rows.saturating_add(self.context).saturating_mul(c);
        let blocks = self.layers.saturating_mul(block);
        tables.saturating_add(blocks).saturating_add(c.saturating_mul(1 + bias))
    }

    /// Floating-point operations of one training step on `tokens` tokens in sequences of `t`: 6 per weight of a matrix
    /// product, and attention's products counted causal (half of all pairs).
    pub fn flops(&self, tokens: usize, t: usize) -> f64 {
        let c = self.width as f64;
        let block = 4.0 * c * c + 2.0 * c * self.inner() as f64;
        let weights = self.layers as f64 * block + self.vocab as f64 * c;
        let attention = self.layers as f64 * 6.0 * c * t as f64;
        tokens as f64 * (6.0 * weights + attention)
    }

    /// Checks each size by itself and the heads against the width.
    ///
    /// # Errors
    /// `Shape` that names the size.
    pub fn validate(&self) -> Result<()> {
        let sizes = [
            ("layers", self.layers),
            ("heads", self.heads),
            ("width", self.width),
            ("context", self.context),
            ("vocabulary", self.vocab),
            ("width of the MLP", self.inner()),
        ];
        if let Some((name, size)) = sizes.iter().find(|(_, size)| !(1..=MAX_SIZE).contains(size)) {
            return Err(Error::shape(format!("{name} is {size}, expected 1 to {MAX_SIZE}")));
        }
        let (heads, width) = (self.heads, self.width);
        if !width.is_multiple_of(heads) {
            return Err(Error::shape(format!("{heads} heads do not divide a width of {width}")));
        }
        if width / heads > MAX_HEAD {
            let size = width / heads;
            return Err(Error::shape(format!(
                "{heads} heads of a width of {width} are {size} wide, {MAX_HEAD} at most is supported"
            )));
        }
        if !(self.eps > 0.0 && self.eps.is_finite()) {
            return Err(Error::shape(format!(
                "the norms' epsilon is {}, expected a number above 0",
                self.eps
            )));
        }
        Ok(())
    }

    /// # Errors
    /// `Memory` with what is requested and available, when the weights alone do not fit.
    pub(super) fn check_memory(&self, device: &Device, dtype: DType) -> Result<()> {
        let capabilities = device.capabilities();
        let on_host = capabilities.is_cpu() || capabilities.simulated;
        let host = available_memory().filter(|_| on_host).unwrap_or(u64::MAX);
        let available = capabilities.global_mem.min(host);
        let count = self.parameters();
        let bytes = (count as u64).saturating_mul(dtype.size() as u64);
        if bytes <= available {
            return Ok(());
        }
        Err(Error::memory(format!(
            "gpt: {count} parameters in {dtype} take {}, {} has {} available; nothing was allocated. Take fewer layers, a smaller \
             width or vocabulary, or a narrower type",
            human(bytes),
            capabilities.id,
            human(available)
        )))
    }

    /// Names and shapes of the parameters, in the order in which a model makes them. Nothing is allocated ahead: there may be
    /// more layers than any file has tensors.
    pub fn tensors(&self) -> impl Iterator<Item = (String, Vec<usize>)> + use<> {
        let Self { layers, width: c, context, vocab, bias, .. } = *self;
        let (inner, tied) = (self.inner(), self.variant.tied);
        let named = move |name: String, weight: Vec<usize>| {
            let last = weight.last().copied().unwrap_or(0);
            let vector = bias.then(|| (format!("{name}.bias"), vec![last]));
            std::iter::once((format!("{name}.weight"), weight)).chain(vector)
        };
        let table = |name: &str, rows: usize| (format!("{name}.weight"), vec![rows, c]);
        let block = move |index: usize| {
            let parts = [
                ("ln_1", vec![c]),
                ("attn.c_attn", vec![c, 3 * c]),
                ("attn.c_proj", vec![c, c]),
                ("ln_2", vec![c]),
                ("mlp.c_fc", vec![c, inner]),
                ("mlp.c_proj", vec![inner, c]),
            ];
            parts
                .into_iter()
                .flat_map(move |(part, shape)| named(format!("transformer.h.{index}.{part}"), shape))
        };
        [table("transformer.wte", vocab), table("transformer.wpe", context)]
            .into_iter()
            .chain((0..layers).flat_map(block))
            .chain(named("transformer.ln_f".into(), vec![c]))
            .chain((!tied).then(|| table("lm_head", vocab)))
    }
}
