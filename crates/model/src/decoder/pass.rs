//! Inputs of a forward pass and of a decoding step that all blocks share.

use super::state::LayerState;
use crate::layers::Mode;
use netcl_tensor::{Error, Result, Tensor};

/// Cosines and sines (T, R/2) of one set of rotary frequencies for the positions of a pass.
pub type Angles = [Tensor; 2];

/// Inputs of a forward pass.
pub struct Pass<'a> {
    /// Dropout, random numbers, recomputation.
    pub mode: Mode<'a>,
    /// Rotary tables for each set of frequencies.
    pub angles: Vec<Angles>,
    /// States of the preceding tokens, if any.
    pub past: Option<Past<'a>>,
}

/// The states after `start` tokens, which a pass reads and extends.
#[derive(Clone, Copy)]
pub struct Past<'a> {
    /// State of each layer of the model.
    pub states: &'a [LayerState],
    /// Tokens before.
    pub start: usize,
    /// u32 (M): the pages of the single text, if states are in pages.
    pub pages: Option<&'a Tensor>,
}

/// Inputs of a decoding step (one or a few new tokens of each text).
pub struct StepAt<'a> {
    /// Rotary tables for each set of frequencies, with one row per position in the capacity of the states.
    pub angles: &'a [Angles],
    /// State of each layer of the model.
    pub states: &'a [LayerState],
    /// Number of preceding tokens, u32 (1) or (B) in device memory.
    pub position: &'a Tensor,
    /// u32 (B, M): the pages of each text, if states are in pages.
    pub pages: Option<&'a Tensor>,
}

fn of(states: &[LayerState], layer: usize) -> Result<&LayerState> {
    states.get(layer).ok_or_else(|| Error::internal(format!("cache: no layer {layer}")))
}

impl Past<'_> {
    /// Returns the state of a layer.
    pub fn state(&self, layer: usize) -> Result<&LayerState> {
        of(self.states, layer)
    }
}

impl StepAt<'_> {
    /// Returns the state of a layer.
    pub fn state(&self, layer: usize) -> Result<&LayerState> {
        of(self.states, layer)
    }
}
