//! Names that a family of decoders uses in its files.

/// A model family of Hugging Face `transformers`, with its names. [`DecoderConfig`](super::DecoderConfig) describes the computation of a model.
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
    /// Prefix of all names except the head's; missing in files of a model without head.
    pub prefix: &'static str,
    /// Token table (V, C).
    pub embedding: &'static str,
    /// Position table (context, C).
    pub positions: &'static str,
    /// Prefix of layer numbers.
    pub layer: &'static str,
    /// Query, key and value projections: one packed or three separate.
    pub qkv: &'static [&'static str],
    /// Whether the packed projection is interleaved by head: query, key and value of head 0, then of head 1, … (GPT-NeoX).
    pub qkv_by_head: bool,
    /// Output projection of attention.
    pub out: &'static str,
    /// Norms of queries and keys.
    pub qk_norms: [&'static str; 2],
    /// Norms before attention and MLP.
    pub pre_norms: [&'static str; 2],
    /// Norms after attention and MLP.
    pub post_norms: [&'static str; 2],
    /// First map of the MLP; for a gated MLP gate and up projection, packed or separate.
    pub up: &'static [&'static str],
    /// Second map of the MLP.
    pub down: &'static str,
    /// Experts, in families that have them.
    pub experts: Option<ExpertNames>,
    /// Final norm.
    pub last_norm: &'static str,
    /// Output head (V, C), if it is not tied.
    pub head: &'static str,
    /// Whether weights are stored as (in, out), like GPT-2's `Conv1D`, instead of (out, in).
    pub transposed: bool,
    /// Whether files contain biases of all maps and norms, zeros if the model has none.
    pub always_biases: bool,
    /// Suffixes of tensors in old files that are not parameters.
    pub buffers: &'static [&'static str],
}

impl Names {
    /// Returns the prefix of the names in layer `i`.
    pub(super) fn place(&self, i: usize) -> String {
        format!("{}{}{i}.", self.prefix, self.layer)
    }
}

/// Names of a mixture of experts' tensors.
#[derive(Clone, Copy, Debug)]
pub struct ExpertNames {
    /// Prefix of all of them. `transformers` uses `mlp` in memory, and files saved without renaming do so too.
    pub folder: &'static str,
    /// Gate, up and down projection of one expert, after its number.
    pub maps: [&'static str; 3],
}
