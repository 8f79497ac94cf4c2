//! States of the texts of a step.

use super::state::State;
use netcl_tensor::Tensor;

/// As a stage has them.
#[derive(Clone, Copy)]
pub(super) struct Store<'a> {
    /// Of each layer of the model.
    pub(super) states: &'a [State],
    /// u32 (B, M): the pages of each text.
    pub(super) pages: Option<&'a Tensor>,
    /// B.
    pub(super) texts: usize,
}
