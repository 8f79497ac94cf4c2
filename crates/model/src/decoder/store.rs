//! Keys and values of the texts of a step.

use netcl_tensor::Tensor;

/// As a stage has them.
#[derive(Clone, Copy)]
pub(super) struct Store<'a> {
    /// For each layer of the model (B, S, 2 KH, D), or with pages (P, page, 2 KH, D).
    pub(super) layers: &'a [Tensor],
    /// u32 (B, M): the pages of each text.
    pub(super) pages: Option<&'a Tensor>,
    /// B.
    pub(super) texts: usize,
}
