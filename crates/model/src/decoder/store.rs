//! States of the texts of a step.

use super::state::State;
use netcl_tensor::Tensor;

/// States for a stage.
#[derive(Clone, Copy)]
pub(super) struct Store<'a> {
    /// State of each layer of the model.
    pub(super) states: &'a [State],
    /// u32 (B, M): the pages of each text.
    pub(super) pages: Option<&'a Tensor>,
    /// B.
    pub(super) texts: usize,
}
