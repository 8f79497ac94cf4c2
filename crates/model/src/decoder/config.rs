//! Description of a decoder-only transformer as data.

use super::activation::Activation;
use super::family::Family;
use super::mixer::attention::AttentionConfig;
use super::mixer::name::MixerName;
use super::rotary::Rotary;
use netcl_device::{available_memory, human};
use netcl_tensor::{DType, Device, Error, Result};

/// All options in which decoder families differ. Sizes: B sequences of T tokens, width C, heads H, key and value heads KH,
/// head size D, vocabulary V.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// Family: names of tensors in files and of fields in `config.json`.
    pub family: &'static Family,
    /// Vocabulary V.
    pub vocab: usize,
    /// Width C of the residual stream.
    pub width: usize,
    /// Context length.
    pub context: usize,
    /// Normalization.
    pub norm: NormConfig,
    /// Position of the norms in a block.
    pub placement: Placement,
    /// Parallel attention and MLP: both read the same x, and both results are added to it (GPT-NeoX, GPT-J).
    pub parallel: bool,
    /// Attention options for layers with attention.
    pub attention: AttentionConfig,
    /// MLP (feed-forward part).
    pub mlp: MlpConfig,
    /// Position encoding.
    pub positions: Positions,
    /// Sets of rotary frequencies; each layer uses one of them or none.
    pub rotary: Vec<Rotary>,
    /// Number of blocks.
    pub layers: usize,
    /// Kinds of layers: layer i has kind `i % kinds.len()`.
    pub kinds: Vec<LayerKind>,
    /// Factor of the token embeddings (Gemma: √C).
    pub embedding_scale: f32,
    /// Factor of the outputs added to the residual stream (Granite).
    pub residual_scale: f32,
    /// Factor of the logits.
    pub logits_scale: f32,
    /// A logit s becomes `cap * tanh(s / cap)` (Gemma 2).
    pub logits_softcap: Option<f32>,
    /// Whether the output head is tied to the token embedding.
    pub tied: bool,
}

/// Normalization over the width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormConfig {
    /// Kind.
    pub kind: NormKind,
    /// ε, added to the variance.
    pub eps: f32,
    /// Whether a layer norm has a bias.
    pub bias: bool,
    /// Whether the stored weight is an offset from 1 (Gemma).
    pub unit_offset: bool,
}

/// Kinds of normalization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Layer normalization (Ba et al. 2016).
    Layer,
    /// Root mean square (Zhang and Sennrich 2019).
    Rms,
}

/// Position of the norms in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Before each part: `x + part(norm(x))`.
    Pre,
    /// After each part: `x + norm(part(x))` (OLMo 2).
    Post,
    /// Both: `x + norm(part(norm(x)))` (Gemma 2 and 3).
    Both,
}

/// MLP (feed-forward part).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlpConfig {
    /// Width of its hidden layer.
    pub hidden: usize,
    /// Activation function.
    pub activation: Activation,
    /// Gated: `down(act(gate x) * up x)` (Shazeer 2020) instead of `down(act(up x))`.
    pub gated: bool,
    /// Whether the maps have biases.
    pub bias: bool,
    /// Mixture of experts in sparse layers.
    pub moe: Option<MoeConfig>,
}

/// A sparse mixture of experts (Shazeer et al. 2017): gated MLPs of which a router chooses a few for each token. They use the activation of the
/// dense MLP and do not have biases.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeConfig {
    /// Number of experts E.
    pub experts: usize,
    /// Experts per token.
    pub top_k: usize,
    /// Width of an expert's hidden layer.
    pub hidden: usize,
    /// Whether the weights of the chosen experts are normalized to sum 1.
    pub renormalise: bool,
    /// Whether training adds the balance loss (Fedus et al. 2021) of all routers (`output_router_logits`).
    pub balance: bool,
    /// Factor of the balance loss (`router_aux_loss_coef`).
    pub balance_factor: f32,
}

/// Position encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// A trained table (context, C), added to the embeddings.
    Learned,
    /// Sines and cosines (Vaswani et al. 2017), added to the embeddings.
    Sinusoidal,
    /// Rotary embeddings in layers with a set of frequencies, none in others.
    Rotary,
}

/// Options that may differ between layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerKind {
    /// The mixer of its tokens.
    pub mixer: MixerName,
    /// Sliding window: number of keys that a query attends to, including its own position; `None`: all.
    pub window: Option<usize>,
    /// Index of the set of rotary frequencies; `None`: no rotary embedding in this layer.
    pub rotary: Option<usize>,
    /// Whether the layer has the mixture of experts instead of the MLP.
    pub sparse: bool,
}

/// Sizes of a decoder. Everything else is given by the family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    /// Number of blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; default: number of query heads.
    pub kv_heads: Option<usize>,
    /// Head size; default: `width / heads`.
    pub head_size: Option<usize>,
    /// Width of the residual stream.
    pub width: usize,
    /// Width of the MLP's hidden layer; default: four times the width, or for gated MLPs 8/3 of it rounded up to a multiple of 64.
    pub mlp: Option<usize>,
    /// Context length.
    pub context: usize,
    /// Vocabulary.
    pub vocab: usize,
    /// Base of the rotary frequencies; default by family.
    pub rope_theta: Option<f64>,
    /// Whether the output head is tied; default by family.
    pub tied: Option<bool>,
}

impl Default for Sizes {
    /// A small model with a vocabulary of bytes.
    fn default() -> Self {
        let kv_heads = None;
        let head_size = None;
        let mlp = None;
        let rope_theta = None;
        let tied = None;
        Self {
            layers: 2,
            heads: 2,
            kv_heads,
            head_size,
            width: 64,
            mlp,
            context: 64,
            vocab: 256,
            rope_theta,
            tied,
        }
    }
}

/// Returns the shortest list whose repetition begins with `kinds`.
fn shortest_period(mut kinds: Vec<LayerKind>) -> Vec<LayerKind> {
    let n = kinds.len();
    let repeats = |p: &usize| (*p..n).all(|i| kinds[i] == kinds[i - p]);
    let period = (1..n).find(repeats).unwrap_or(n);
    kinds.truncate(period);
    kinds
}

impl DecoderConfig {
    /// Returns the configuration with biases in all linear maps and layer norms, or in none.
    #[must_use]
    pub fn with_biases(mut self, bias: bool) -> Self {
        self.norm.bias = bias && self.norm.kind == NormKind::Layer;
        (self.attention.qkv_bias, self.attention.out_bias, self.mlp.bias) = (bias, bias, bias);
        self
    }

    /// Returns the kind of layer `i`.
    pub fn kind(&self, i: usize) -> LayerKind {
        self.kinds.get(i % self.kinds.len().max(1)).copied().unwrap_or_default()
    }

    /// Sets the kinds of all layers, stored as the shortest period.
    #[must_use]
    pub fn with_kinds(mut self, kinds: Vec<LayerKind>) -> Self {
        self.kinds = shortest_period(kinds.into_iter().take(self.layers).collect());
        self
    }

    /// # Errors
    /// `Memory` with needed and available memory, if the weights alone do not fit.
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
            "{count} parameters in {dtype} need {}, {} has {} available; nothing was allocated. Use fewer layers, a smaller width or vocabulary, or \
             a narrower type",
            human(bytes),
            capabilities.id,
            human(available)
        )))
    }

    /// Returns the sum over all layers of a function of their kind; saturating.
    pub fn over_layers(&self, of: impl Fn(usize) -> usize) -> usize {
        let period = self.kinds.len().clamp(1, self.layers.max(1));
        let sum = |n: usize| (0..n).fold(0usize, |sum, i| sum.saturating_add(of(i)));
        let (whole, rest) = (self.layers / period, self.layers % period);
        sum(period).saturating_mul(whole).saturating_add(sum(rest))
    }
}
