//! Reinforcement learning from groups of answers: advantages and the loss of group relative policy optimization (Shao et al. 2024).
//!
//! Names, defaults and results are those of TRL's `GRPOTrainer`. The loss is for given answers; `netcl train` does not sample them.

mod advantages;
mod loss;
#[cfg(test)]
mod tests;

pub use advantages::{RewardScale, group_advantages};
pub use loss::{GrpoLoss, GrpoResult, GrpoVariant, Rollouts};
