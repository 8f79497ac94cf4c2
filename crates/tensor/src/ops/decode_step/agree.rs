//! Whether a step in one launch is what several launches made of the same token.

use super::DecodeStep;
use crate::ops::prelude::*;

/// So much more than rounding explains on average is wrong.
const MARGIN: f64 = 3.0;
/// Logits that differ by this share of their size show that the kernel itself is wrong, whatever the model.
const BROKEN: f64 = 0.2;

/// What a step makes of a token of each text.
struct Made {
    logits: Vec<f32>,
    /// Of each layer the token's keys and values (2 KH, D).
    rows: Vec<Vec<f32>>,
}

impl Made {
    fn is_finite(&self) -> bool {
        self.rows.iter().chain([&self.logits]).flatten().all(|v| v.is_finite())
    }
}

/// Distance of two vectors.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
}

fn size(a: &[f32]) -> f64 {
    a.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt()
}

/// A share of what it is a share of; of nothing only nothing is a small one.
fn share(off: f64, of: f64) -> f64 {
    if off > 0.0 || off.is_nan() { off / of } else { 0.0 }
}

impl DecodeStep {
    /// Whether its logits, and the keys and values that it writes, are those that a step of several launches made of the same token: `expected`, and
    /// the caches' rows of `position`. What differs by more than rounding explains is told in a warning. The first time on
    /// a device a launch that does not end is found out and the kernel left from then on.
    pub fn agrees(&self, input: &Tensor, position: &Tensor, expected: &Tensor) -> bool {
        let device = input.device();
        // A damaged model says nothing about the kernel.
        let sound = |all: &Vec<Made>| !all.is_empty() && all.iter().all(Made::is_finite);
        let Some(expected) = self.made(position, expected).ok().filter(sound) else { return false };
        let run = || self.run(input, position).and_then(|logits| self.made(position, &logits));
        // A proof holds for the kernel, whatever the model; each model is compared besides.
        let proof = || {
            let got = run()?;
            let off = |(got, expected): (&Made, &Made)| {
                share(distance(&got.logits, &expected.logits), size(&expected.logits))
            };
            // NaN is the largest.
            let all = got.iter().zip(&expected).map(off);
            let off = all.fold(0.0, |most, off| if off <= most { most } else { off });
            // Not `>`: NaN is wrong too.
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
            "a step of one launch differs by {:.2} times what rounding explains, in {}",
            worst.0,
            worst.1
        );
        if !near {
            tracing::warn!(
                "a step is several launches: that of one launch differs by {:.1} times what rounding explains in {}",
                worst.0,
                worst.1
            );
        }
        near
    }

    /// Of each text that the caches have room for.
    fn made(&self, position: &Tensor, logits: &Tensor) -> Result<Vec<Made>> {
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
            made.push(Made { rows, logits: logits.slice(0, text..text + 1)?.to_vec()? });
        }
        Ok(made)
    }

    /// The worst of all texts.
    fn worst_of_all(&self, got: &[Made], expected: &[Made]) -> (f64, String) {
        let all = got.iter().zip(expected).map(|(got, expected)| self.worst(got, expected));
        // NaN is the worst.
        all.reduce(|a, b| if b.0 <= a.0 || a.0.is_nan() { a } else { b }).unwrap_or_default()
    }

    /// The largest difference in units of what rounding explains at that depth, and where it is. Rounding errors of the parts of all layers before
    /// add up as independent ones do.
    fn worst(&self, got: &Made, expected: &Made) -> (f64, String) {
        let explained = |parts: usize| self.rounding * (1.0 + parts as f64).sqrt();
        let mut worst: (f64, String) = (0.0, String::new());
        let mut note = |off: f64, place: &dyn Fn() -> String| {
            // NaN is the worst.
            if !worst.0.is_nan() && (off.is_nan() || off > worst.0) {
                worst = (off, place());
            }
        };
        for (layer, (got, expected)) in got.rows.iter().zip(&expected.rows).enumerate() {
            let half = expected.len() / 2;
            let width = half / self.kv_heads.max(1);
            for (name, range) in [("keys", 0..half), ("values", half..expected.len())] {
                let (got, expected) = (&got[range.clone()], &expected[range]);
                // Of a head, as a share of what heads are on average.
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
