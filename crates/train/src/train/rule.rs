//! The optimizer that settings name.

use crate::config::TrainConfig;
use crate::optim::{AdamW, Rule};
use std::sync::Arc;

/// How parameters follow their gradients in a run with these settings. Memory plans, ZeRO and the update ask it.
pub(super) fn rule(config: &TrainConfig) -> Arc<dyn Rule> {
    Arc::new(AdamW { betas: config.betas, eps: config.eps })
}
