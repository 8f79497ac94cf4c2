//! Validation of settings; each message names the option to change.

use super::{Schedule, TrainConfig};
use netcl_device::{Error, Result};

/// Largest head size: attention kernels keep a row of a head in registers or local memory.
const MAX_HEAD: usize = 256;
/// Number of candidates, in each direction, when a valid number of heads is suggested; bounds the search for absurd widths.
const TRIED: usize = 10_000;

impl TrainConfig {
    /// `Format` for the first invalid setting, with the change to make.
    pub fn validate(&self) -> Result<()> {
        if let Some(encoding) = &self.encoding {
            crate::data::TextEncoding::of(encoding)?;
        }
        let checks = [self.sizes(), self.run(), self.heads(), self.groups(), self.optimizer()];
        netcl_model::decoder::Freeze::new(&self.freeze)?;
        super::storage_type(&self.dtype.to_string())?;
        if let Some(message) = checks.into_iter().flatten().next() {
            return Err(Error::format(message));
        }
        // Settings that the family does not have.
        self.decoder(self.vocab.unwrap_or(1)).map(drop)
    }

    fn sizes(&self) -> Option<String> {
        let sizes = [
            ("layers", self.layers),
            ("heads", self.heads),
            ("width", self.width),
            ("mlp", self.mlp.unwrap_or(1)),
            ("context", self.context),
            ("vocab", self.vocab.unwrap_or(1)),
            ("batch", self.batch),
            ("grad-accum", self.grad_accum as usize),
            ("steps", usize::from(self.steps > 0)),
            ("keep", self.keep),
            ("pipeline", self.pipeline),
        ];
        let zero = sizes.iter().find(|(_, size)| *size == 0);
        if let Some((flag, _)) = zero {
            return Some(format!("--{flag} is 0; it must be at least 1"));
        }
        let (stages, layers) = (self.pipeline, self.layers);
        (stages > layers).then(|| {
            format!("--pipeline {stages} for --layers {layers}: a stage has one layer at least, so there are at most {layers} stages")
        })
    }

    /// Checks key/value heads and an explicit head size.
    fn groups(&self) -> Option<String> {
        if let Some(kv_heads) = self.kv_heads.filter(|n| *n == 0 || !self.heads.is_multiple_of(*n)) {
            return Some(format!("--kv-heads {kv_heads} does not divide --heads {}", self.heads));
        }
        let wide = self.head_size.filter(|n| !(1..=MAX_HEAD).contains(n));
        wide.map(|size| format!("--head-size {size}: 1 to {MAX_HEAD} are supported"))
    }

    fn heads(&self) -> Option<String> {
        if self.head_size.is_some() {
            return None;
        }
        let (heads, width) = (self.heads, self.width);
        let fits = |heads: &usize| width.is_multiple_of(*heads) && width / heads <= MAX_HEAD;
        if fits(&heads) {
            return None;
        }
        let below = (1..heads.min(width.saturating_add(1))).rev().take(TRIED).find(fits);
        let above = (heads.saturating_add(1)..=width).take(TRIED).find(fits);
        let near: Vec<_> = below.into_iter().chain(above).map(|heads| heads.to_string()).collect();
        let reason = if width.is_multiple_of(heads) {
            format!(
                "--heads {heads} makes heads of {}, --width {width} allows {MAX_HEAD} at most",
                width / heads
            )
        } else {
            format!("--heads {heads} does not divide --width {width}")
        };
        Some(match near.is_empty() {
            true => format!(
                "{reason}, nor does a number near it; take a --width with small factors, as 64 for each head"
            ),
            false => format!("{reason}; the nearest heads that fit: {}", near.join(", ")),
        })
    }

    fn optimizer(&self) -> Option<String> {
        let part = |value: f64| (0.0..1.0).contains(&value);
        let from_zero = |value: f64| value >= 0.0 && value.is_finite();
        let [b1, b2] = self.betas;
        let decays = self.schedule != Schedule::Constant;
        let wrong = [
            (!part(self.dropout), format!("--dropout {} must be at least 0 and below 1", self.dropout)),
            (!part(self.val_split), format!("--val-split {} must be at least 0 and below 1", self.val_split)),
            (!part(b1) || !part(b2), format!("--betas {b1},{b2} must both be at least 0 and below 1")),
            (!(from_zero(self.lr) && self.lr > 0.0), format!("--lr {} must be above 0", self.lr)),
            (!from_zero(self.min_lr), format!("--min-lr {} must be at least 0", self.min_lr)),
            (
                decays && self.min_lr > self.lr,
                format!(
                    "--min-lr {} is above --lr {}; lower it, or take --schedule constant",
                    self.min_lr, self.lr
                ),
            ),
            (
                self.warmup > self.steps,
                format!(
                    "--warmup {} is above --steps {}; the full rate would never come",
                    self.warmup, self.steps
                ),
            ),
            (
                !from_zero(self.weight_decay),
                format!("--weight-decay {} must be at least 0", self.weight_decay),
            ),
            (!(from_zero(self.eps) && self.eps > 0.0), format!("eps {} must be above 0", self.eps)),
            (!from_zero(self.clip), format!("--clip {} must be at least 0; 0 turns it off", self.clip)),
        ];
        wrong.into_iter().find(|(wrong, _)| *wrong).map(|(_, message)| message)
    }

    fn run(&self) -> Option<String> {
        if let Some(message) = too_large(self) {
            return Some(message);
        }
        if self.zero > 0 && self.pipeline > 1 {
            return Some(format!(
                "--zero {} with --pipeline {}: a stage has the state of its layers alone, which is not divided further; take one of them",
                self.zero, self.pipeline
            ));
        }
        if self.zero > 2 {
            return Some(format!("--zero {} is none of 0, 1 and 2", self.zero));
        }
        let names = [("tokenizer", &self.tokenizer), ("device", &self.device)];
        names.iter().find(|(_, name)| name.is_empty()).map(|(flag, _)| format!("--{flag} is empty"))
    }
}

/// The first number of `settings` that exceeds the signed integers of TOML.
pub(super) fn too_large(settings: &impl serde::Serialize) -> Option<String> {
    let values = serde_json::to_value(settings).ok()?;
    let limit = i64::MAX;
    let large =
        values.as_object()?.iter().find(|(_, value)| value.as_u64().is_some_and(|n| n > limit as u64));
    large.map(|(key, value)| format!("--{} {value} is above {limit}", key.replace('_', "-")))
}
