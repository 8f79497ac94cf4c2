//! Parses the checks that `NETCL_DEBUG` enables.

use crate::{Error, Result, did_you_mean};

/// Checks of all device work. Each check waits for the device after every launch or operation. Use them to find a defect, not in production.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Debug {
    /// Inspects the results of operations. The first NaN or infinity is an error that names the operation, layer and element.
    pub nan: bool,
    /// Reports accesses outside a buffer as errors. The simulator has its own check; other devices get guard zones before and after each buffer,
    /// which no launch may change.
    pub bounds: bool,
    /// Checks that launch arguments and operation results are within their buffers.
    pub shapes: bool,
}

/// Valid names. `fuse` prints information instead of checking.
const NAMES: [&str; 4] = ["nan", "bounds", "shapes", "fuse"];

impl Debug {
    /// Parses a list of names in the format of `NETCL_DEBUG`.
    ///
    /// # Errors
    /// `Format` with the unknown name.
    pub fn parse(names: &[String]) -> Result<Self> {
        let mut out = Self::default();
        for name in names {
            match name.as_str() {
                "nan" => out.nan = true,
                "bounds" => out.bounds = true,
                "shapes" => out.shapes = true,
                known if NAMES.contains(&known) => {}
                unknown => {
                    return Err(Error::format(format!(
                        "NETCL_DEBUG: {unknown:?} is unknown; it is one or more of {}{}",
                        NAMES.join(", "),
                        did_you_mean(unknown, NAMES)
                    )));
                }
            }
        }
        Ok(out)
    }

    /// Returns true if a check is enabled that cannot run in a replayed step.
    pub fn needs_each(self) -> bool {
        self.nan || self.bounds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_or_refused() {
        let parse = |names: &[&str]| Debug::parse(&names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>());
        assert_eq!(parse(&[]).unwrap(), Debug::default());
        assert_eq!(
            parse(&["nan", "shapes", "fuse"]).unwrap(),
            Debug { nan: true, bounds: false, shapes: true }
        );
        let error = parse(&["bound"]).unwrap_err();
        assert_eq!(
            error.message(),
            "NETCL_DEBUG: \"bound\" is unknown; it is one or more of nan, bounds, shapes, fuse; did you mean bounds?"
        );
    }
}
