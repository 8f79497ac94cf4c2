//! Values that have names: the error of the type itself, which suggests, and all names for help and completions.

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use std::ffi::OsStr;
use std::fmt::Display;
use std::marker::PhantomData;
use std::str::FromStr;

/// Parses a `T` by its name.
pub struct Named<T> {
    names: Vec<&'static str>,
    made: PhantomData<fn() -> T>,
}

impl<T> Clone for Named<T> {
    fn clone(&self) -> Self {
        Self { names: self.names.clone(), made: PhantomData }
    }
}

/// A parser for the values of a table of names.
pub fn named<T, const N: usize>(names: &[(&'static str, T); N]) -> Named<T> {
    Named { names: names.iter().map(|(name, _)| *name).collect(), made: PhantomData }
}

impl<T> TypedValueParser for Named<T>
where
    T: FromStr + Clone + Send + Sync + 'static,
    T::Err: Display,
{
    type Value = T;

    fn parse_ref(
        &self,
        cmd: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        let text = value.to_string_lossy();
        text.parse().map_err(|e: T::Err| {
            let flag = arg.map_or_else(String::new, |arg| format!(" for '{arg}'"));
            let message = format!("invalid value '{text}'{flag}: {e}\n");
            clap::Error::raw(ErrorKind::ValueValidation, message).with_cmd(cmd)
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.names.iter().map(|name| PossibleValue::new(*name))))
    }
}
