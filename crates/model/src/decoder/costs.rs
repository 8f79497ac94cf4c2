//! Operations and memory per token, and the state per text of a decoder.

use super::config::{DecoderConfig, LayerKind};
use super::mixer::{self, MixerCosts};
use super::state::StateSpec;

impl DecoderConfig {
    /// Returns the weights used per token in the matrix products of a block of this kind; for experts, only the chosen ones.
    fn block_weights(&self, kind: LayerKind) -> f64 {
        let (c, mlp) = (self.width as f64, self.mlp.hidden as f64);
        let projections = mixer::of(kind.mixer).weights(self);
        let maps = if self.mlp.gated { 3.0 } else { 2.0 };
        projections
            + match self.mlp.moe.filter(|_| kind.sparse) {
                Some(moe) => c * (moe.experts as f64 + maps * moe.top_k as f64 * moe.hidden as f64),
                None => maps * c * mlp,
            }
    }

    /// Returns the floating-point operations of one training step on `tokens` tokens in sequences of `t`. Matrix products count 6 per weight.
    /// Attention's products count visible pairs: half of all pairs if causal, and only those within windows.
    pub fn flops(&self, tokens: usize, t: usize) -> f64 {
        let period = self.kinds.len().max(1);
        let layer = (0..period).map(|i| self.layer_flops(i, t)).sum::<f64>() / period as f64;
        tokens as f64 * (self.layers as f64 * layer + 6.0 * self.vocab as f64 * self.width as f64)
    }

    /// Returns those of layer `i` for one token.
    pub fn layer_flops(&self, i: usize, t: usize) -> f64 {
        let kind = self.kind(i);
        6.0 * self.block_weights(kind) + mixer::of(kind.mixer).flops(self, kind, t)
    }

    /// Returns the memory for a token in the mixer of a layer of this kind.
    pub fn mixer_costs(&self, kind: LayerKind) -> MixerCosts {
        mixer::of(kind.mixer).costs(self)
    }

    /// Returns the decoding state of a text in layer `i`.
    pub fn state(&self, i: usize) -> StateSpec {
        let kind = self.kind(i);
        mixer::of(kind.mixer).state(self, kind)
    }
}
