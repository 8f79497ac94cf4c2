//! Values with names: errors come from the type itself, with suggestions; help and completions show all names.

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use netcl::prelude::{Error, Result};
use std::ffi::OsStr;
use std::str::FromStr;

/// A parser of a `T` by its name.
pub struct Named<T> {
    names: Vec<&'static str>,
    parse: fn(&str) -> Result<T>,
}

impl<T> Clone for Named<T> {
    fn clone(&self) -> Self {
        Self { names: self.names.clone(), parse: self.parse }
    }
}

/// Returns a parser for the values of a table of names.
pub fn named<T: FromStr<Err = Error>, const N: usize>(names: &[(&'static str, T); N]) -> Named<T> {
    named_by(names, str::parse)
}

/// Does the same if a function knows more names than the table has.
pub fn named_by<T, const N: usize>(names: &[(&'static str, T); N], parse: fn(&str) -> Result<T>) -> Named<T> {
    Named { names: names.iter().map(|(name, _)| *name).collect(), parse }
}

/// Does the same for names without values, which a function checks.
pub fn checked(names: &[&'static str], refuse: fn(&str) -> Result<()>) -> Named<()> {
    Named { names: names.to_vec(), parse: refuse }
}

impl<T> TypedValueParser for Named<T>
where
    T: Clone + Send + Sync + 'static,
{
    type Value = T;

    fn parse_ref(
        &self,
        cmd: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> std::result::Result<T, clap::Error> {
        let text = value.to_string_lossy();
        (self.parse)(&text).map_err(|e| {
            let flag = arg.map_or_else(String::new, |arg| format!(" for '{arg}'"));
            let message = format!("invalid value '{text}'{flag}: {e}\n");
            clap::Error::raw(ErrorKind::ValueValidation, message).with_cmd(cmd)
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.names.iter().map(|name| PossibleValue::new(*name))))
    }
}
