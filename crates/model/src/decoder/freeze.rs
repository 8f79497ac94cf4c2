//! Frozen parameters, selected by patterns of their names.

use super::{DecoderConfig, ParamShape, shapes};
use glob::Pattern;
use netcl_tensor::{Error, Result};

/// Maximum number of names in an error message.
const LISTED: usize = 4;

/// Patterns of parameter names as in files, with the wildcards `*`, `?` and `[ab]`.
#[derive(Clone, Debug, Default)]
pub struct Freeze {
    patterns: Vec<Pattern>,
}

impl Freeze {
    /// Parses patterns such as `model.layers.0.*`.
    ///
    /// # Errors
    /// `Format` for an invalid pattern.
    pub fn new(patterns: &[String]) -> Result<Self> {
        let parse = |text: &String| {
            Pattern::new(text)
                .map_err(|e| Error::format(format!("--freeze {text}: not a pattern of names: {e}")))
        };
        Ok(Self { patterns: patterns.iter().map(parse).collect::<Result<_>>()? })
    }

    /// Returns true if the whole parameter matches.
    pub fn takes(&self, shape: &ParamShape) -> bool {
        let hit = |name: &str| self.patterns.iter().any(|pattern| pattern.matches(name));
        shape.pieces.iter().all(|(name, _)| hit(name))
    }

    /// Returns the number of elements of the matching parameters of `config`.
    pub fn elements(&self, config: &DecoderConfig) -> usize {
        if self.patterns.is_empty() {
            return 0;
        }
        let named = shapes::all(config).filter(|shape| self.takes(shape));
        named.fold(0usize, |sum, shape| sum.saturating_add(shape.count()))
    }

    /// For each parameter, whether it is frozen.
    ///
    /// # Errors
    /// `Format` for a pattern that matches nothing or only a part of a packed parameter (queries, keys and values; gate and up projection of an
    /// MLP), and if nothing is left to train.
    pub(super) fn frozen(&self, shapes: &[ParamShape]) -> Result<Vec<bool>> {
        for pattern in &self.patterns {
            let names = || shapes.iter().flat_map(|shape| shape.pieces.iter().map(|(name, _)| name.as_str()));
            if !names().any(|name| pattern.matches(name)) {
                let near = netcl_device::did_you_mean(pattern.as_str(), names());
                return Err(Error::format(format!("--freeze {pattern}: no parameter matches{near}")));
            }
        }
        let frozen = |shape: &ParamShape| {
            let hit = |name: &str| self.patterns.iter().any(|pattern| pattern.matches(name));
            let (in_, out): (Vec<_>, Vec<_>) =
                shape.pieces.iter().map(|(name, _)| name).partition(|name| hit(name));
            match (in_.first(), out.first()) {
                (Some(in_), Some(out)) => {
                    let names: Vec<_> = shape.pieces.iter().map(|(name, _)| name.as_str()).collect();
                    let all = match names[..] {
                        [first, .., last] if names.len() > LISTED => {
                            format!("the {} from {first} to {last}", names.len())
                        }
                        _ => names.join(", "),
                    };
                    Err(Error::format(format!(
                        "--freeze includes {in_} but not {out}, which are one parameter here: freeze all of {all}, or none"
                    )))
                }
                (found, _) => Ok(found.is_some()),
            }
        };
        let all = shapes.iter().map(frozen).collect::<Result<Vec<_>>>()?;
        if !all.is_empty() && all.iter().all(|frozen| *frozen) {
            return Err(Error::format("--freeze names every parameter: nothing is left to train"));
        }
        Ok(all)
    }
}
