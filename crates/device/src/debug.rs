//! Which checks `NETCL_DEBUG` asks for.

use crate::{Error, Result, did_you_mean};

/// Checks of everything that runs on a device. All of them wait for the device after each launch or operation: they are for finding a
/// defect, not for work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Debug {
    /// Results of operations are looked at: the first NaN or infinity is an error that names operation, layer and element.
    pub nan: bool,
    /// Accesses beyond a buffer's ends are errors: the simulator's own check, elsewhere guard zones before and behind each buffer, which no launch may
    /// change.
    pub bounds: bool,
    /// Arguments of launches and results of operations lie within their buffers.
    pub shapes: bool,
}

/// The names that there are; `fuse` shows instead of checking.
const NAMES: [&str; 4] = ["nan", "bounds", "shapes", "fuse"];

impl Debug {
    /// From names as `NETCL_DEBUG` has them.
    ///
    /// # Errors
    /// `Format` with the name that is unknown.
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

    /// Whether there is a check that a replayed step could not make.
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
