//! What a family of decoders calls things in its files.

/// A family of models as Hugging Face's `transformers` knows it. What it computes stands in its [`DecoderConfig`](super::DecoderConfig).
#[derive(Debug)]
pub struct Family {
    /// `model_type` of `config.json`.
    pub model_type: &'static str,
    /// `architectures` of `config.json`.
    pub architecture: &'static str,
    /// Names of tensors.
    pub names: &'static Names,
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.model_type == other.model_type
    }
}

/// Names of tensors in a family's files, without `.weight` and `.bias`.
#[derive(Debug)]
pub struct Names {
    /// Before everything but the head; files of a model without head lack it.
    pub prefix: &'static str,
    /// Token table (V, C).
    pub embedding: &'static str,
    /// Position table (context, C).
    pub positions: &'static str,
    /// Before the number of a layer.
    pub layer: &'static str,
    /// Queries, keys and values: one packed projection or three.
    pub qkv: &'static [&'static str],
    /// The packed projection holds query, key and value of head 0, then those of head 1, … (GPT-NeoX).
    pub qkv_by_head: bool,
    /// Output projection of attention.
    pub out: &'static str,
    /// Norms of queries and keys.
    pub qk_norms: [&'static str; 2],
    /// Norms before attention and MLP.
    pub pre_norms: [&'static str; 2],
    /// Norms behind them.
    pub post_norms: [&'static str; 2],
    /// First map of the MLP; gate and value where it is gated, packed or apart.
    pub up: &'static [&'static str],
    /// Second map.
    pub down: &'static str,
    /// Experts, in families that have them.
    pub experts: Option<ExpertNames>,
    /// Last norm.
    pub last_norm: &'static str,
    /// Head (V, C), where it is not the token table.
    pub head: &'static str,
    /// Weights are (in, out), as GPT-2's `Conv1D` has them, rather than (out, in).
    pub transposed: bool,
    /// Files have biases of all maps and norms, zeros where the model has none.
    pub always_biases: bool,
    /// Tensors of old files that are no parameters, by their ends.
    pub buffers: &'static [&'static str],
}

/// Names of a mixture's tensors.
#[derive(Clone, Copy, Debug)]
pub struct ExpertNames {
    /// Folder of all of them. `transformers` holds them under `mlp`, and so may files that it wrote as they are in memory.
    pub folder: &'static str,
    /// Gate, value and map back of one expert, behind its number.
    pub maps: [&'static str; 3],
}
