//! Comparison of a single-launch step with a step of several launches for the same token.

use super::DecodeStep;
use crate::ops::prelude::*;

/// Differences above this multiple of the expected rounding error are reported as wrong.
const MARGIN: f64 = 3.0;
/// Relative error of the logits above which the kernel itself is wrong, for any model.
const BROKEN: f64 = 0.2;

/// Results of a step for one text.
struct StepResult {
    logits: Vec<f32>,
    /// The token's keys and values (2 KH, D) in each layer.
    rows: Vec<Vec<f32>>,
}

impl StepResult {
    fn is_finite(&self) -> bool {
        self.rows.iter().chain([&self.logits]).flatten().all(|v| v.is_finite())
    }
}

/// Returns the Euclidean distance of two vectors.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
}

fn size(a: &[f32]) -> f64 {
    a.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt()
}

/// Returns the ratio `off / of`; 0 / 0 counts as 0.
fn share(off: f64, of: f64) -> f64 {
    if off > 0.0 || off.is_nan() { off / of } else { 0.0 }
}

impl DecodeStep {
    /// Returns whether this step agrees with a step of several launches for the same token: in its logits (`expected`), and in the keys and values
    /// of the caches' rows at `position`. A warning reports differences beyond rounding. The first call on a device also tests that a launch ends;
    /// if it does not, the kernel is not used from then on.
    pub fn agrees(&self, input: &Tensor, position: &Tensor, expected: &Tensor) -> bool {
        let device = input.device();
        // A damaged model says nothing about the kernel.
        let sound = |all: &Vec<StepResult>| !all.is_empty() && all.iter().all(StepResult::is_finite);
        let Some(expected) = self.made(position, expected).ok().filter(sound) else { return false };
        let run = || self.run(input, position).and_then(|logits| self.made(position, &logits));
        // The proof applies to the kernel, whatever the model. Each model is compared in addition.
        let proof = || {
            let got = run()?;
            let off = |(got, expected): (&StepResult, &StepResult)| {
                share(distance(&got.logits, &expected.logits), size(&expected.logits))
            };
            // Treat NaN as the largest value.
            let all = got.iter().zip(&expected).map(off);
            let off = all.fold(0.0, |most, off| if off <= most { most } else { off });
            // `<=` is false for NaN, which is also wrong.
            let near = off <= BROKEN;
            if near {
                Ok(())
            } else {
                Err(Error::internal(format!("decode_step: logits differ by {off:.3}")))
            }
        };
        if !Tuning::of(device).proven(device, self.text.kernel(self.texts), proof) {
            return false;
        }
        let worst = match run() {
            Ok(got) => self.worst_of_all(&got, &expected),
            Err(e) => (f64::NAN, e.message().to_owned()),
        };
        let near = worst.0 <= MARGIN;
        tracing::debug!(
            "the single-launch step differs by {:.2} times the expected rounding error, in {}",
            worst.0,
            worst.1
        );
        if !near {
            tracing::warn!(
                "using several launches per step: the single-launch step differs by {:.1} times the expected rounding error in {}",
                worst.0,
                worst.1
            );
        }
        near
    }

    /// Collects the results of each text that the caches have room for.
    fn made(&self, position: &Tensor, logits: &Tensor) -> Result<Vec<StepResult>> {
        let positions = position.to_u32()?;
        let pages = self.pages.as_ref().map(Tensor::to_u32).transpose()?;
        let mut made = Vec::new();
        for text in 0..self.texts {
            let at = positions.get(text).or(positions.first()).map_or(usize::MAX, |at| *at as usize);
            if at >= self.room {
                continue;
            }
            let (page, row) = match &pages {
                Some(pages) => {
                    let page = pages.get(text * (pages.len() / self.texts) + at / self.page);
                    (page.map_or(usize::MAX, |page| *page as usize), at % self.page)
                }
                None => (text, at),
            };
            let row_of = |cache: &Tensor| {
                cache.slice(0, page..page.saturating_add(1))?.slice(1, row..row + 1)?.to_vec()
            };
            let rows = self.caches.iter().map(row_of).collect::<Result<_>>()?;
            made.push(StepResult { rows, logits: logits.slice(0, text..text + 1)?.to_vec()? });
        }
        Ok(made)
    }

    /// Returns the largest difference of all texts.
    fn worst_of_all(&self, got: &[StepResult], expected: &[StepResult]) -> (f64, String) {
        let all = got.iter().zip(expected).map(|(got, expected)| self.worst(got, expected));
        // NaN is the largest.
        all.reduce(|a, b| if b.0 <= a.0 || a.0.is_nan() { a } else { b }).unwrap_or_default()
    }

    /// Returns the largest difference, in units of the rounding error expected at that depth, and its location. Rounding errors of earlier layers
    /// are assumed to be independent.
    fn worst(&self, got: &StepResult, expected: &StepResult) -> (f64, String) {
        let explained = |parts: usize| self.rounding * (1.0 + parts as f64).sqrt();
        let mut worst: (f64, String) = (0.0, String::new());
        let mut note = |off: f64, place: &dyn Fn() -> String| {
            // NaN is the largest.
            if !worst.0.is_nan() && (off.is_nan() || off > worst.0) {
                worst = (off, place());
            }
        };
        for (layer, (got, expected)) in got.rows.iter().zip(&expected.rows).enumerate() {
            let half = expected.len() / 2;
            let width = half / self.kv_heads.max(1);
            for (name, range) in [("keys", 0..half), ("values", half..expected.len())] {
                let (got, expected) = (&got[range.clone()], &expected[range]);
                // Error of a head, relative to the average size of the heads.
                let usual = size(expected) / (self.kv_heads as f64).sqrt();
                let heads = got.chunks(width).zip(expected.chunks(width)).enumerate();
                for (head, (got, expected)) in heads {
                    let off = share(distance(got, expected), usual.max(size(expected)));
                    note(off / explained(2 * layer), &|| format!("{name} of head {head} in layer {layer}"));
                }
            }
        }
        let off = share(distance(&got.logits, &expected.logits), size(&expected.logits));
        note(off / explained(2 * expected.rows.len()), &|| "the logits".into());
        worst
    }
}
