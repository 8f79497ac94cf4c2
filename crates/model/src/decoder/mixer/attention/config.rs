//! Description of self-attention as data.

/// Largest head size: attention kernels keep a row of a head in registers or local memory.
pub const MAX_HEAD: usize = 256;

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
    /// Whether the output projection has a bias.
    pub out_bias: bool,
    /// Normalization of queries and keys before the rotary embedding.
    pub qk_norm: QkNorm,
    /// Factor of the scores; 1/√D when `None`.
    pub scale: Option<f32>,
    /// Whether scores are divided by the layer number, from 1 (GPT-2's `scale_attn_by_inverse_layer_idx`).
    pub scale_by_layer: bool,
    /// A score s becomes `cap * tanh(s / cap)`.
    pub softcap: Option<f32>,
}

/// Normalization of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// For each head separately (Qwen 3, Gemma 3).
    Head,
    /// All heads together (OLMo 2).
    Full,
}

impl AttentionConfig {
    /// Returns the query heads that share keys and values.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads.max(1)
    }

    /// Returns the query heads, and key and value heads.
    pub(in crate::decoder) fn counts(&self) -> [usize; 2] {
        [self.heads, self.kv_heads]
    }

    /// Elements of the packed queries, keys and values of a token; saturating.
    pub(super) fn packed(&self) -> usize {
        self.heads.saturating_add(self.kv_heads.saturating_mul(2)).saturating_mul(self.size)
    }
}
