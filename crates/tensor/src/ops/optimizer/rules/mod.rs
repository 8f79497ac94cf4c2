//! The optimizers: what one says about itself, and the list of all.
//!
//! To add one, write its file and its OpenCL text next to it, and name it in [`KINDS`].

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

/// Every optimizer. The first one's text is also built for f16, the first one's and the last one's for bf16, in self-tests.
pub const KINDS: &[&Kind] = &[&adamw::KIND, &adam::KIND, &lion::KIND, &sgd::KIND];

/// An optimizer with its hyperparameters: how an element of a parameter follows its gradient.
pub trait Rule: Debug + Send + Sync {
    /// Its line of [`KINDS`].
    fn kind(&self) -> &'static Kind;

    /// Hyperparameters, in the order of [`Kind::hyper`].
    fn values(&self) -> Vec<f64>;

    /// Names of what is kept for each parameter, as checkpoints have them: tensors of its shape in f32, which start at zero; three at most.
    /// They are the pointers `m`, `v`, … of the OpenCL text, in this order.
    fn state(&self) -> &'static [&'static str];

    /// Whether a step needs whole matrices, of which no rank may have a part.
    fn needs_whole_matrices(&self) -> bool {
        false
    }

    /// Bytes for each element of a parameter that is stored as `dtype`: its state, and f32 master weights of narrower types.
    fn bytes(&self, dtype: DType) -> usize {
        (self.state().len() + usize::from(dtype != DType::F32)) * DType::F32.size()
    }

    /// Factors of averages that start at zero, for which the text gets corrections at step t: `c1` = 1 / (1 - β₁ᵗ), `c2` the root of
    /// 1 / (1 - β₂ᵗ).
    fn averages(&self) -> [f64; 2] {
        [0.0; 2]
    }

    /// `h0` … `h3` of the text. Differences from 1 are taken here, in f64.
    fn scalars(&self) -> [f64; 4];

    /// Further defines of the text.
    fn defines(&self) -> Vec<(&'static str, bool)> {
        Vec::new()
    }

    /// A step of one element in f64, which the self-test compares with: parameter and state are updated in place.
    fn reference(&self, p: &mut f64, state: &mut [f64], step: &Step);
}

/// Values that all elements of a step share.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Its number, from 1 on.
    pub number: i32,
    /// The clipped gradient.
    pub gradient: f64,
    /// Learning rate.
    pub lr: f64,
    /// Weight decay.
    pub decay: f64,
}

/// What is known of an optimizer before its hyperparameters are.
pub struct Kind {
    /// Its name in settings.
    pub name: &'static str,
    /// Its name in texts for people.
    pub title: &'static str,
    /// Its hyperparameters.
    pub hyper: &'static [Hyper],
    /// The optimizer with such values, one for each of [`Kind::hyper`], which were checked.
    pub make: fn(&[f64]) -> Arc<dyn Rule>,
    /// OpenCL text of `advance`.
    pub(super) text: &'static str,
    /// The cases of the self-test.
    pub(super) cases: fn() -> Vec<Arc<dyn Rule>>,
}

/// A hyperparameter.
#[derive(Clone, Copy, Debug)]
pub struct Hyper {
    /// Its name.
    pub name: &'static str,
    /// Its value where none is given.
    pub default: f64,
    /// Whether it can have a value.
    pub fits: fn(f64) -> bool,
    /// The values that it can have, for errors.
    pub expected: &'static str,
}

impl Hyper {
    /// A share: at least 0 and below 1.
    pub const fn share(name: &'static str, default: f64) -> Self {
        Self { name, default, fits: |x| (0.0..1.0).contains(&x), expected: "at least 0 and below 1" }
    }
    /// A finite number from 0 on.
    pub const fn from_zero(name: &'static str, default: f64) -> Self {
        Self { name, default, fits: |x| x >= 0.0 && x.is_finite(), expected: "at least 0" }
    }
    /// A finite number.
    pub const fn number(name: &'static str, default: f64) -> Self {
        Self { name, default, fits: f64::is_finite, expected: "a finite number" }
    }
    /// 1 for yes, 0 for no.
    pub const fn switch(name: &'static str) -> Self {
        Self { name, default: 0.0, fits: |x| x == 0.0 || x == 1.0, expected: "0 or 1" }
    }
}

impl Kind {
    /// The optimizer of this name.
    ///
    /// # Errors
    /// `Format` with the names that there are.
    pub fn named(name: &str) -> Result<&'static Self> {
        KINDS.iter().copied().find(|kind| kind.name == name).ok_or_else(|| {
            let names = listed(KINDS.iter().map(|kind| kind.name));
            Error::format(format!("optimizer: {name:?} is unknown; expected one of {names}"))
        })
    }

    /// The optimizer with these hyperparameters, and defaults for others.
    ///
    /// # Errors
    /// `Format` for a hyperparameter that it does not have, and for a value that it cannot have.
    pub fn with(&self, given: &[(&str, f64)]) -> Result<Arc<dyn Rule>> {
        if let Some((name, _)) = given.iter().find(|(name, _)| self.hyper.iter().all(|h| h.name != *name)) {
            let names = listed(self.hyper.iter().map(|h| h.name));
            return Err(Error::format(format!(
                "optimizer {}: no hyperparameter {name}; expected one of {names}",
                self.name
            )));
        }
        let value =
            |h: &Hyper| given.iter().rfind(|(name, _)| *name == h.name).map_or(h.default, |(_, x)| *x);
        let values: Vec<f64> = self.hyper.iter().map(value).collect();
        self.check(&values)?;
        Ok((self.make)(&values))
    }

    /// Whether hyperparameters can have these values.
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

/// The define `RULE`: its place in [`KINDS`].
pub(super) fn number(kind: &Kind) -> usize {
    KINDS.iter().position(|other| other.name == kind.name).unwrap_or(KINDS.len())
}

/// The texts of all, of which `RULE` chooses one.
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

    /// Each name, state and hyperparameter means one thing; what a list of values makes has these values.
    #[test]
    fn kinds_describe_what_they_make() {
        for (i, kind) in KINDS.iter().enumerate() {
            assert!(KINDS[..i].iter().all(|other| other.name != kind.name && other.title != kind.title));
            assert_eq!((number(kind), Kind::named(kind.name).unwrap().title), (i, kind.title));
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
        let adamw = Kind::named("adamw").unwrap();
        assert_eq!(adamw.with(&[("beta2", 0.95)]).unwrap().values(), [0.9, 0.95, 1e-8]);
        let fails = |given: &[(&str, f64)], part: &str| {
            let error = adamw.with(given).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        fails(&[("momentum", 0.9)], "adamw: no hyperparameter momentum; expected one of beta1, beta2, eps");
        fails(&[("beta1", 1.0)], "adamw: beta1 1, expected at least 0 and below 1");
        fails(&[("eps", f64::NAN)], "adamw: eps NaN, expected at least 0");
        let error = Kind::named("adagrad").err().unwrap().to_string();
        assert!(error.contains("\"adagrad\" is unknown; expected one of adamw, adam, lion, sgd"), "{error}");
    }
}
