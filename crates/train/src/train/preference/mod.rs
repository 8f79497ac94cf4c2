//! Objectives that compare answers: their losses, their numbers per step, and the log probabilities of the reference model.
//!
//! ```text
//! records ─ rows of both answers ─ log probability of each ─ loss of the record ─ mean over the step
//!     └ log probabilities under the reference, computed once before training ┘
//! ```
//!
//! The reference is the model that training starts from. Its log probabilities do not change, so they are computed before the first step and stored in
//! the run folder. No second model is in memory then.

mod comparison;
mod loss;
mod reference;
mod statistics;
#[cfg(test)]
mod tests;

pub(super) use comparison::PreferenceObjective;
pub(super) use reference::{References, prepare};
