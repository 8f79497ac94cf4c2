//! Validates settings; each message names the option to change. The table has the ranges of single settings.

use super::value::too_large;
use super::{GraphMode, TrainConfig};
use crate::schedule::Schedule;
use netcl_device::{Error, Result};
use netcl_model::decoder::Lora;
use netcl_model::layers::Recompute;

/// Largest head size.
const MAX_HEAD: usize = super::table::MAX_HEAD as usize;
/// Number of candidates in each direction when a valid number of heads is suggested; it bounds the search for absurd widths.
const MAX_TRIED_HEADS: usize = 10_000;

impl TrainConfig {
    /// Validates the settings. Returns `Format` for the first invalid one, with the change to make.
    pub fn validate(&self) -> Result<()> {
        if let Some(encoding) = &self.encoding {
            crate::data::TextEncoding::of(encoding)?;
        }
        let wrong = self.out_of_range().or_else(|| too_large(self)).or_else(|| self.divided());
        let wrong = wrong
            .or_else(|| self.sizes())
            .or_else(|| self.heads())
            .or_else(|| self.rates())
            .or_else(|| self.momentum())
            .or_else(|| self.adapters())
            .or_else(|| self.offload())
            .or_else(|| self.packed())
            .or_else(|| self.wrong_objective());
        self.memory_limit()?;
        netcl_model::decoder::Freeze::new(&self.freeze)?;
        self.lora.as_deref().map(Lora::parse).transpose()?;
        super::storage_type(&self.dtype.to_string())?;
        if let Some(message) = wrong {
            return Err(Error::format(message));
        }
        // Refuses settings that the family does not have.
        self.decoder(self.vocab.unwrap_or(1)).map(drop)
    }

    fn packed(&self) -> Option<String> {
        if !self.pack {
            return None;
        }
        match () {
            () if self.pipeline > 1 => Some(
                "--pack with --pipeline: a pipeline's stages do not know the records of a row; use replicas (--devices) or --pipeline 1".into(),
            ),
            () if self.objective.is_preference() => Some(format!(
                "--pack with --objective {}: answers are compared in separate rows; remove --pack",
                self.objective
            )),
            () => None,
        }
    }

    fn adapters(&self) -> Option<String> {
        let lora = self.lora.as_ref()?;
        let refused = |with: &str, why: &str| Some(format!("--lora {lora} {with}: {why}"));
        match () {
            () if self.init.is_none() => {
                refused("without --init", "adapters change an existing model; name it with --init DIR")
            }
            () if !self.freeze.is_empty() => refused(
                "with --freeze",
                "the model's own weights are all frozen; choose the adapted maps with targets=…",
            ),
            () if self.pipeline > 1 => refused(
                "with --pipeline",
                "adapters of a pipeline's stages are not supported; use replicas (--devices) or --pipeline 1",
            ),
            () => None,
        }
    }

    /// Returns the bytes of `--memory`.
    ///
    /// # Errors
    /// `Format` for text that is not a size.
    pub fn memory_limit(&self) -> Result<Option<u64>> {
        let limit = |text: &String| {
            netcl_device::parse_bytes(text).map_err(|e| Error::format(format!("--memory {text}: {e}")))
        };
        self.memory.as_ref().map(limit).transpose()
    }

    /// Returns whether steps are captured: copies to the host cannot be replayed.
    pub fn graph_mode(&self) -> GraphMode {
        if self.recompute == Recompute::Offload { GraphMode::Off } else { self.graph }
    }

    fn offload(&self) -> Option<String> {
        if self.recompute != Recompute::Offload {
            return None;
        }
        let refused = |with: String, why: &str| Some(format!("{with} with --recompute offload: {why}"));
        match () {
            () if self.graph == GraphMode::On => refused(
                "--graph on".into(),
                "copies to the host cannot be replayed; use --graph auto or --recompute block",
            ),
            () if self.pipeline > 1 => refused(
                format!("--pipeline {}", self.pipeline),
                "inputs of blocks of a stage stay on its device; use --recompute block",
            ),
            () => None,
        }
    }

    fn momentum(&self) -> Option<String> {
        let (momentum, optimizer) = (self.momentum, self.optimizer);
        (momentum != 0.0 && !optimizer.has("momentum")).then(|| {
            format!("--momentum {momentum} has no effect on {optimizer}; remove it, or use --optimizer sgd")
        })
    }

    /// Checks stages, and the number of key/value heads.
    fn sizes(&self) -> Option<String> {
        let (stages, layers) = (self.pipeline, self.layers);
        if stages > layers {
            return Some(format!(
                "--pipeline {stages} for --layers {layers}: a stage needs at least one layer; use at most {layers} stages"
            ));
        }
        let odd = self.kv_heads.filter(|n| *n == 0 || !self.heads.is_multiple_of(*n));
        odd.map(|kv_heads| format!("--kv-heads {kv_heads} does not divide --heads {}", self.heads))
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
        let below = (1..heads.min(width.saturating_add(1))).rev().take(MAX_TRIED_HEADS).find(fits);
        let above = (heads.saturating_add(1)..=width).take(MAX_TRIED_HEADS).find(fits);
        let near: Vec<_> = below.into_iter().chain(above).map(|heads| heads.to_string()).collect();
        let reason = if width.is_multiple_of(heads) {
            format!(
                "--heads {heads} makes heads of {}; --width {width} allows at most {MAX_HEAD}",
                width / heads
            )
        } else {
            format!("--heads {heads} does not divide --width {width}")
        };
        Some(match near.is_empty() {
            true => format!(
                "{reason}, nor does a number near it; use a --width with small factors, such as 64 per head"
            ),
            false => format!("{reason}; the nearest heads that fit: {}", near.join(", ")),
        })
    }

    fn rates(&self) -> Option<String> {
        let Self { lr, min_lr, warmup, steps, .. } = self;
        if self.schedule != Schedule::Constant && min_lr > lr {
            return Some(format!(
                "--min-lr {min_lr} is above --lr {lr}; lower it, or use --schedule constant"
            ));
        }
        (warmup > steps).then(|| {
            format!(
                "--warmup {warmup} is above --steps {steps}; the full learning rate would never be reached"
            )
        })
    }

    fn divided(&self) -> Option<String> {
        (self.zero > 0 && self.pipeline > 1).then(|| {
            format!(
                "--zero {} with --pipeline {}: a stage holds only its layers' state, which is not divided further; use one of the two",
                self.zero, self.pipeline
            )
        })
    }
}
