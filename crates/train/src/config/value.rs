//! Types of settings: parsing of command-line words, and the view of values for checks.

use super::dtype::{DTYPES, storage_type};
use super::graph_mode::GraphMode;
use super::objective::ObjectiveName;
use super::optimizer::OptimizerName;
use super::train_on::TrainOn;
use crate::schedule::Schedule;
use netcl_device::{Error, MatmulPrecision, Result};
use netcl_model::layers::Recompute;
use netcl_tensor::DType;
use std::str::FromStr;

/// Form of a setting's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Integers from 0 to this one.
    Whole(u64),
    /// Real numbers.
    Real,
    /// Two real numbers.
    Pair,
    /// `true` or `false`.
    Bool,
    /// Text.
    Text,
    /// Any number of texts.
    List,
    /// One of these names.
    Names(&'static [&'static str]),
}

/// A value that can be given for a setting.
pub trait Given: Sized {
    /// Form of the values.
    const KIND: Kind;

    /// Parses words; of several words that are not parts of one value, the last one counts.
    ///
    /// # Errors
    /// `Format` with the expected form.
    fn parse(words: &[&str]) -> Result<Self>;

    /// Returns the numbers of the value.
    fn numbers(&self) -> Vec<f64> {
        Vec::new()
    }

    /// Returns the text of a text value.
    fn text(&self) -> Option<&str> {
        None
    }
}

/// The value of a setting, which may be optional.
pub trait Value: Sized {
    /// The type that can be given.
    type Given: Given;

    /// Returns this value, replaced by the given one.
    fn or(self, given: Option<Self::Given>) -> Self;

    /// Returns the given value, if there is one.
    fn given(&self) -> Option<&Self::Given>;
}

impl<T: Given> Value for T {
    type Given = T;
    fn or(self, given: Option<T>) -> Self {
        given.unwrap_or(self)
    }
    fn given(&self) -> Option<&T> {
        Some(self)
    }
}

impl<T: Given> Value for Option<T> {
    type Given = T;
    fn or(self, given: Self) -> Self {
        given.or(self)
    }
    fn given(&self) -> Option<&T> {
        self.as_ref()
    }
}

fn last<'a>(words: &[&'a str]) -> Result<&'a str> {
    words.last().copied().ok_or_else(|| Error::format("expected a value"))
}

fn number<T: FromStr>(words: &[&str], expected: &str) -> Result<T> {
    let word = last(words)?;
    word.trim().parse().map_err(|_| Error::format(format!("expected {expected}, found {word}")))
}

const WHOLE: &str = "a whole number of at least 0";
const REAL: &str = "a number such as 0.1 or 1e-4";

impl Given for usize {
    const KIND: Kind = Kind::Whole(Self::MAX as u64);
    fn parse(words: &[&str]) -> Result<Self> {
        number(words, WHOLE)
    }
    fn numbers(&self) -> Vec<f64> {
        vec![*self as f64]
    }
}

impl Given for u64 {
    const KIND: Kind = Kind::Whole(Self::MAX);
    fn parse(words: &[&str]) -> Result<Self> {
        number(words, WHOLE)
    }
    fn numbers(&self) -> Vec<f64> {
        vec![*self as f64]
    }
}

impl Given for u32 {
    const KIND: Kind = Kind::Whole(Self::MAX as u64);
    fn parse(words: &[&str]) -> Result<Self> {
        number(words, WHOLE)
    }
    fn numbers(&self) -> Vec<f64> {
        vec![f64::from(*self)]
    }
}

impl Given for u8 {
    const KIND: Kind = Kind::Whole(Self::MAX as u64);
    fn parse(words: &[&str]) -> Result<Self> {
        number(words, WHOLE)
    }
    fn numbers(&self) -> Vec<f64> {
        vec![f64::from(*self)]
    }
}

impl Given for f64 {
    const KIND: Kind = Kind::Real;
    fn parse(words: &[&str]) -> Result<Self> {
        number(words, REAL)
    }
    fn numbers(&self) -> Vec<f64> {
        vec![*self]
    }
}

impl Given for [f64; 2] {
    const KIND: Kind = Kind::Pair;
    fn parse(words: &[&str]) -> Result<Self> {
        let numbers = words.iter().map(|word| f64::parse(&[word])).collect::<Result<Vec<_>>>()?;
        numbers.try_into().map_err(|numbers: Vec<f64>| {
            let are = if numbers.len() == 1 { "is" } else { "are" };
            Error::format(format!("two numbers, such as 0.9,0.95; there {are} {}", numbers.len()))
        })
    }
    fn numbers(&self) -> Vec<f64> {
        self.to_vec()
    }
}

impl Given for bool {
    const KIND: Kind = Kind::Bool;
    fn parse(words: &[&str]) -> Result<Self> {
        number(words, "true or false")
    }
}

impl Given for String {
    const KIND: Kind = Kind::Text;
    fn parse(words: &[&str]) -> Result<Self> {
        last(words).map(Into::into)
    }
    fn text(&self) -> Option<&str> {
        Some(self)
    }
}

impl Given for Vec<String> {
    const KIND: Kind = Kind::List;
    fn parse(words: &[&str]) -> Result<Self> {
        Ok(words.iter().map(|word| (*word).to_owned()).collect())
    }
}

/// Returns the names of a table.
const fn names<T: Copy, const N: usize>(table: &[(&'static str, T); N]) -> [&'static str; N] {
    let (mut all, mut i) = ([""; N], 0);
    while i < N {
        all[i] = table[i].0;
        i += 1;
    }
    all
}

impl Given for DType {
    const KIND: Kind = Kind::Names(&names(&DTYPES));
    fn parse(words: &[&str]) -> Result<Self> {
        storage_type(last(words)?)
    }
}

impl Given for Schedule {
    const KIND: Kind = Kind::Names(&names(&Self::NAMES));
    fn parse(words: &[&str]) -> Result<Self> {
        last(words)?.parse()
    }
}

impl Given for MatmulPrecision {
    const KIND: Kind = Kind::Names(&names(&Self::NAMES));
    fn parse(words: &[&str]) -> Result<Self> {
        last(words)?.parse()
    }
}

impl Given for GraphMode {
    const KIND: Kind = Kind::Names(&names(&Self::NAMES));
    fn parse(words: &[&str]) -> Result<Self> {
        last(words)?.parse()
    }
}

impl Given for OptimizerName {
    const KIND: Kind = Kind::Names(&Self::ALL);
    fn parse(words: &[&str]) -> Result<Self> {
        Self::parse(last(words)?)
    }
}

impl Given for TrainOn {
    const KIND: Kind = Kind::Names(&names(&Self::NAMES));
    fn parse(words: &[&str]) -> Result<Self> {
        last(words)?.parse()
    }
}

impl Given for ObjectiveName {
    const KIND: Kind = Kind::Names(&names(&Self::NAMES));
    fn parse(words: &[&str]) -> Result<Self> {
        last(words)?.parse()
    }
}

impl Given for Recompute {
    const KIND: Kind = Kind::Names(&names(&Self::NAMES));
    fn parse(words: &[&str]) -> Result<Self> {
        last(words)?.parse()
    }
}

/// Returns the flag of a key, without its two dashes.
pub(super) fn flag(key: &str) -> String {
    key.replace('_', "-")
}

/// Returns an error for the first number of `settings` that exceeds the signed integers of TOML.
pub(crate) fn too_large(settings: &impl serde::Serialize) -> Option<String> {
    let values = serde_json::to_value(settings).ok()?;
    let limit = i64::MAX;
    let large =
        values.as_object()?.iter().find(|(_, value)| value.as_u64().is_some_and(|n| n > limit as u64));
    large.map(|(key, value)| format!("--{} {value} is above {limit}", flag(key)))
}
