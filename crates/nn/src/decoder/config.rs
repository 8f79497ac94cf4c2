//! What a decoder-only transformer is, as data.

use super::families::Family;
use super::rotary::Rotary;
use netcl_tensor::ops::gated::Gate;
use netcl_tensor::{Error, Result};

/// Every choice that tells one family of decoders from another. Sizes: B sequences of T tokens, width C, heads H, key and value heads KH,
/// head size D, vocabulary V.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// Names of its tensors in files, and of its fields in `config.json`.
    pub family: &'static Family,
    /// Vocabulary V.
    pub vocab: usize,
    /// Width C of the residual stream.
    pub width: usize,
    /// Longest sequence.
    pub context: usize,
    /// The norms.
    pub norm: NormConfig,
    /// Where they stand in a block.
    pub placement: Placement,
    /// Attention and MLP read the same x, and both results are added to it (GPT-NeoX, GPT-J).
    pub parallel: bool,
    /// Attention.
    pub attention: AttentionConfig,
    /// Feed-forward part.
    pub mlp: MlpConfig,
    /// How a token knows its position.
    pub positions: Positions,
    /// Sets of rotary frequencies that layers choose from.
    pub rotary: Vec<Rotary>,
    /// One entry a layer.
    pub layers: Vec<LayerKind>,
    /// Factor of the token embeddings (Gemma: √C).
    pub embedding_scale: f32,
    /// Factor of what a part adds to the residual stream (Granite).
    pub residual_scale: f32,
    /// Factor of the logits.
    pub logits_scale: f32,
    /// A logit s becomes `cap * tanh(s / cap)` (Gemma 2).
    pub logits_softcap: Option<f32>,
    /// Whether the head is the token table.
    pub tied: bool,
}

/// Normalisation over the width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormConfig {
    /// Which.
    pub kind: NormKind,
    /// Added to the variance.
    pub eps: f32,
    /// Whether a layer norm has a bias.
    pub bias: bool,
    /// The stored weight is what is added to 1 (Gemma).
    pub unit_offset: bool,
}

/// Kinds of normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Layer normalisation (Ba et al. 2016).
    Layer,
    /// Root mean square (Zhang and Sennrich 2019).
    Rms,
}

/// Where the norms of a block stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Before each part: `x + part(norm(x))`.
    Pre,
    /// Behind each part: `x + norm(part(x))` (OLMo 2).
    Post,
    /// Both: `x + norm(part(norm(x)))` (Gemma 2 and 3).
    Both,
}

/// Self-attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionConfig {
    /// Query heads H.
    pub heads: usize,
    /// Key and value heads KH; divides H.
    pub kv_heads: usize,
    /// Head size D.
    pub size: usize,
    /// Whether the projections of queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether the output projection has one.
    pub out_bias: bool,
    /// Normalisation of queries and keys before their positions.
    pub qk_norm: QkNorm,
    /// Factor of the scores; 1/√D when `None`.
    pub scale: Option<f32>,
    /// The scores are divided by the number of the layer, from 1 (GPT-2's `scale_attn_by_inverse_layer_idx`).
    pub scale_by_layer: bool,
    /// A score s becomes `cap * tanh(s / cap)`.
    pub softcap: Option<f32>,
}

/// What queries and keys are normalised over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Not at all.
    None,
    /// Each head by itself (Qwen 3, Gemma 3).
    Head,
    /// All heads together (OLMo 2).
    Full,
}

/// Feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlpConfig {
    /// Width of its hidden layer.
    pub hidden: usize,
    /// What the hidden layer goes through.
    pub activation: Gate,
    /// `down(act(gate x) * up x)` (Shazeer 2020) rather than `down(act(up x))`.
    pub gated: bool,
    /// Whether its maps have biases.
    pub bias: bool,
}

/// How a token knows its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// A trained table (context, C), added to the embeddings.
    Learned,
    /// Sines and cosines (Vaswani et al. 2017), added to the embeddings.
    Sinusoidal,
    /// Rotary angles in the layers that name some, else nothing.
    Rotary,
}

/// What may differ from layer to layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerKind {
    /// Keys that a query sees at most, its own among them; `None` for all.
    pub window: Option<usize>,
    /// Which set of rotary frequencies; `None` for no positions in this layer.
    pub rotary: Option<usize>,
}

impl DecoderConfig {
    /// # Errors
    /// `Shape` for sizes that do not fit each other, by name.
    pub fn check(&self) -> Result<()> {
        let AttentionConfig { heads, kv_heads, size, .. } = self.attention;
        let sizes = [
            ("vocabulary", self.vocab),
            ("width", self.width),
            ("context", self.context),
            ("number of heads", heads),
            ("number of key and value heads", kv_heads),
            ("head size", size),
            ("hidden width", self.mlp.hidden),
        ];
        if let Some((name, _)) = sizes.iter().find(|(_, n)| *n == 0) {
            return Err(Error::shape(format!("decoder: the {name} is 0, expected at least 1")));
        }
        if !heads.is_multiple_of(kv_heads) {
            return Err(Error::shape(format!(
                "decoder: {heads} query heads are no multiple of {kv_heads} key and value heads"
            )));
        }
        for (i, layer) in self.layers.iter().enumerate() {
            let Some(set) = layer.rotary else { continue };
            let dims = self.rotary.get(set).map_or(0, |rotary| rotary.dims);
            if dims == 0 || dims % 2 == 1 || dims > size {
                return Err(Error::shape(format!(
                    "decoder: layer {i} turns {dims} elements of heads of {size}, expected an even number up to {size}"
                )));
            }
        }
        Ok(())
    }

    /// Elements of all parameters; a tied head counts once. Saturates.
    pub fn parameters(&self) -> usize {
        let shapes = super::shapes::all(self);
        shapes.iter().fold(0, |sum, shape| sum.saturating_add(shape.count()))
    }

    /// Floating-point operations of one training step on `tokens` tokens in sequences of `t`: 6 per weight of a matrix product, and
    /// attention's products counted causal and within windows.
    pub fn flops(&self, tokens: usize, t: usize) -> f64 {
        let a = &self.attention;
        let c = self.width as f64;
        let projections = c * ((a.heads + 2 * a.kv_heads) * a.size) as f64 + c * (a.heads * a.size) as f64;
        let maps = if self.mlp.gated { 3.0 } else { 2.0 };
        let block = projections + maps * c * self.mlp.hidden as f64;
        let weights = self.layers.len() as f64 * block + self.vocab as f64 * c;
        let seen = |layer: &LayerKind| match layer.window {
            Some(window) if window < t => window as f64,
            _ => t as f64 / 2.0,
        };
        let pairs: f64 = self.layers.iter().map(seen).sum();
        tokens as f64 * (6.0 * weights + 12.0 * pairs * (a.heads * a.size) as f64)
    }
}
