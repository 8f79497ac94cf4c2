//! The optimizers: the properties of each, and the list of all.
//!
//! To add one, write its file and its OpenCL source next to it, and add it to [`KINDS`].
//!
//! A rule has names of its state, hyperparameters, OpenCL source for one element and a reference in f64. The update, checkpoints, memory plans and
//! ZeRO use only the rule.

mod adam;
mod adamw;
mod lion;
mod sgd;

use crate::{DType, Error, Result};
pub use adam::Adam;
pub use adamw::AdamW;
pub use lion::Lion;
pub use sgd::Sgd;
use std::fmt::{Debug, Write as _};
use std::sync::Arc;

/// Every optimizer. Self-tests also compile the first one for f16, and the first and the last one for bf16.
pub const KINDS: &[&OptimizerKind] = &[&adamw::KIND, &adam::KIND, &lion::KIND, &sgd::KIND];

/// An optimizer with its hyperparameters: the update of an element of a parameter from its gradient.
pub trait Rule: Debug + Send + Sync {
    /// Returns its entry in [`KINDS`].
    fn kind(&self) -> &'static OptimizerKind;

    /// Returns the hyperparameters, in the order of [`OptimizerKind::hyper`].
    fn values(&self) -> Vec<f64>;

    /// Returns the names of the state of each parameter, as used in checkpoints: at most three f32 tensors of its shape, which start at zero. They
    /// are the pointers `m`, `v`, … of the OpenCL source, in this order.
    fn state(&self) -> &'static [&'static str];

    /// Returns whether a step needs whole matrices, so that no rank may have only a part.
    fn needs_whole_matrices(&self) -> bool {
        false
    }

    /// Returns the bytes per element of a parameter of type `dtype`: its state, and f32 master weights for narrower types.
    fn bytes(&self, dtype: DType) -> usize {
        (self.state().len() + usize::from(dtype != DType::F32)) * DType::F32.size()
    }

    /// Returns the decay rates of averages that start at zero. The OpenCL source gets their corrections at step t: `c1` = 1 / (1 - β₁ᵗ), and `c2`,
    /// the square root of 1 / (1 - β₂ᵗ).
    fn averages(&self) -> [f64; 2] {
        [0.0; 2]
    }

    /// Returns `h0` … `h3` of the OpenCL source. Differences from 1 are computed here, in f64.
    fn scalars(&self) -> [f64; 4];

    /// Returns further defines of the OpenCL source.
    fn defines(&self) -> Vec<(&'static str, bool)> {
        Vec::new()
    }

    /// Computes a step of one element in f64 for the self-test; parameter and state are updated in place.
    fn reference(&self, p: &mut f64, state: &mut [f64], step: &UpdateStep);
}

/// Values that all elements of a step share.
#[derive(Clone, Copy, Debug)]
pub struct UpdateStep {
    /// Number of the step, from 1.
    pub number: i32,
    /// The clipped gradient.
    pub gradient: f64,
    /// Learning rate.
    pub lr: f64,
    /// Weight decay.
    pub decay: f64,
}

/// Static properties of an optimizer.
pub struct OptimizerKind {
    /// Name in settings.
    pub name: &'static str,
    /// Display name.
    pub title: &'static str,
    /// Hyperparameters.
    pub hyper: &'static [Hyper],
    /// Builds the optimizer with these checked values, one for each of [`OptimizerKind::hyper`].
    pub make: fn(&[f64]) -> Arc<dyn Rule>,
    /// OpenCL source of `advance`.
    pub(super) text: &'static str,
    /// Returns the cases of the self-test.
    pub(super) cases: fn() -> Vec<Arc<dyn Rule>>,
}

/// A hyperparameter.
#[derive(Clone, Copy, Debug)]
pub struct Hyper {
    /// Name.
    pub name: &'static str,
    /// Default value.
    pub default: f64,
    /// Returns whether a value is valid.
    pub fits: fn(f64) -> bool,
    /// Description of the valid values, for errors.
    pub expected: &'static str,
}

impl Hyper {
    /// Builds a hyperparameter that is at least 0 and below 1.
    pub const fn share(name: &'static str, default: f64) -> Self {
        Self { name, default, fits: |x| (0.0..1.0).contains(&x), expected: "at least 0 and below 1" }
    }
    /// Builds a hyperparameter that is finite and at least 0.
    pub const fn from_zero(name: &'static str, default: f64) -> Self {
        Self { name, default, fits: |x| x >= 0.0 && x.is_finite(), expected: "at least 0" }
    }
    /// Builds a hyperparameter that is finite.
    pub const fn number(name: &'static str, default: f64) -> Self {
        Self { name, default, fits: f64::is_finite, expected: "a finite number" }
    }
    /// Builds a hyperparameter that is 1 (yes) or 0 (no).
    pub const fn switch(name: &'static str) -> Self {
        Self { name, default: 0.0, fits: |x| x == 0.0 || x == 1.0, expected: "0 or 1" }
    }
}

impl OptimizerKind {
    /// Returns the optimizer with this name.
    ///
    /// # Errors
    /// `Format` with the known names.
    pub fn named(name: &str) -> Result<&'static Self> {
        KINDS.iter().copied().find(|kind| kind.name == name).ok_or_else(|| {
            let names = listed(KINDS.iter().map(|kind| kind.name));
            Error::format(format!("optimizer: {name:?} is unknown; expected one of {names}"))
        })
    }

    /// Builds the optimizer with these hyperparameters, and defaults for all others.
    ///
    /// # Errors
    /// `Format` for an unknown hyperparameter, and for an invalid value.
    pub fn with(&self, given: &[(&str, f64)]) -> Result<Arc<dyn Rule>> {
        if let Some((name, _)) = given.iter().find(|(name, _)| self.hyper.iter().all(|h| h.name != *name)) {
            let names = listed(self.hyper.iter().map(|h| h.name));
            return Err(Error::format(format!(
                "optimizer {}: unknown hyperparameter {name}; expected one of {names}",
                self.name
            )));
        }
        let value =
            |h: &Hyper| given.iter().rfind(|(name, _)| *name == h.name).map_or(h.default, |(_, x)| *x);
        let values: Vec<f64> = self.hyper.iter().map(value).collect();
        self.check(&values)?;
        Ok((self.make)(&values))
    }

    /// Checks that the values are valid for the hyperparameters.
    pub(super) fn check(&self, values: &[f64]) -> Result<()> {
        match self.hyper.iter().zip(values).find(|(h, x)| !(h.fits)(**x)) {
            Some((Hyper { name, expected, .. }, x)) => {
                Err(Error::format(format!("optimizer {}: {name} {x}, expected {expected}", self.name)))
            }
            None => Ok(()),
        }
    }
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// Returns the define `RULE`: the index in [`KINDS`].
pub(super) fn number(kind: &OptimizerKind) -> usize {
    KINDS.iter().position(|other| other.name == kind.name).unwrap_or(KINDS.len())
}

/// Returns the sources of all optimizers, one of which `RULE` selects.
pub(super) fn texts() -> String {
    let mut all = String::new();
    for (i, kind) in KINDS.iter().enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(all, "#if RULE == {i}\n{}\n#endif\n", kind.text);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests that each name, title and state is unique, and that a rule built from values has these values.
    #[test]
    fn kinds_describe_what_they_make() {
        for (i, kind) in KINDS.iter().enumerate() {
            assert!(KINDS[..i].iter().all(|other| other.name != kind.name && other.title != kind.title));
            assert_eq!((number(kind), OptimizerKind::named(kind.name).unwrap().title), (i, kind.title));
            for rule in (kind.cases)() {
                assert_eq!(rule.kind().name, kind.name);
                let (values, state) = (rule.values(), rule.state());
                kind.check(&values).unwrap();
                assert_eq!(values.len(), kind.hyper.len());
                assert_eq!(format!("{rule:?}"), format!("{:?}", (kind.make)(&values)));
                assert!(state.len() <= 3 && !state.contains(&"master"));
                assert_eq!(rule.bytes(DType::F32), 4 * state.len());
                assert_eq!(rule.bytes(DType::Bf16), 4 * state.len() + 4);
            }
        }
    }

    #[test]
    fn hyperparameters_have_defaults_and_bounds() {
        let adamw = OptimizerKind::named("adamw").unwrap();
        assert_eq!(adamw.with(&[("beta2", 0.95)]).unwrap().values(), [0.9, 0.95, 1e-8]);
        let fails = |given: &[(&str, f64)], part: &str| {
            let error = adamw.with(given).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        fails(
            &[("momentum", 0.9)],
            "adamw: unknown hyperparameter momentum; expected one of beta1, beta2, eps",
        );
        fails(&[("beta1", 1.0)], "adamw: beta1 1, expected at least 0 and below 1");
        fails(&[("eps", f64::NAN)], "adamw: eps NaN, expected at least 0");
        let error = OptimizerKind::named("adagrad").err().unwrap().to_string();
        assert!(error.contains("\"adagrad\" is unknown; expected one of adamw, adam, lion, sgd"), "{error}");
    }
}
