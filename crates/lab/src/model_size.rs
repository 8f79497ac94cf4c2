//! Flags of a model's size.

/// The size of a model, for every command that creates one.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct ModelSize {
    /// Transformer blocks.
    #[arg(long)]
    pub layers: Option<usize>,
    /// Attention heads; must divide the width.
    #[arg(long)]
    pub heads: Option<usize>,
    /// Width of the residual stream.
    #[arg(long)]
    pub width: Option<usize>,
    /// Longest sequence, in tokens.
    #[arg(long, visible_alias = "block-size")]
    pub context: Option<usize>,
}
