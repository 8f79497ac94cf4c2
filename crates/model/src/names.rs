//! Values with names on command lines and in files.

use netcl_device::{Error, Result};

/// Returns the value with this name; `what` is its flag.
///
/// # Errors
/// `Format` with all names, and the nearest one.
pub fn by_name<T: Copy>(what: &str, name: &str, all: &[(&str, T)]) -> Result<T> {
    let names = || all.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let found = all.iter().find(|(known, _)| *known == name).map(|&(_, value)| value);
    found.ok_or_else(|| {
        let hint = netcl_device::did_you_mean(name, all.iter().map(|(name, _)| *name));
        Error::format(format!("--{what} {name} is unknown; it is one of {}{hint}", names()))
    })
}

/// Returns the name of a value.
pub fn name_of<T: PartialEq>(value: T, all: &[(&'static str, T)]) -> &'static str {
    all.iter().find(|(_, other)| *other == value).map_or("", |(name, _)| name)
}
