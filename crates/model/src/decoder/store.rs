//! States of the texts of a step.

use super::state::LayerState;
use netcl_tensor::Tensor;

/// States for a stage.
#[derive(Clone, Copy)]
pub(super) struct StageStates<'a> {
    /// State of each layer of the model.
    pub(super) states: &'a [LayerState],
    /// u32 (B, M): the pages of each text.
    pub(super) pages: Option<&'a Tensor>,
    /// B.
    pub(super) texts: usize,
}
