//! Names of checks for settings and command lines.

use super::Checks;

type Switch = fn(&mut Checks);

/// Names with their switches.
const NAMES: [(&str, Switch); 6] = [
    ("bounds", |c| c.bounds = true),
    ("uninitialized", |c| c.uninitialized = true),
    ("races", |c| c.races = true),
    ("barriers", |c| c.barriers = true),
    ("division", |c| c.division = true),
    ("contract", |c| c.contract = true),
];

impl Checks {
    /// Default list of checks.
    pub const DEFAULT: &str = "bounds";

    /// Parses a comma-separated list of checks; `all` for every check, an empty list or `none` for no check.
    ///
    /// # Errors
    /// A sentence with the unknown name and the valid names.
    pub fn parse(list: &str) -> Result<Self, String> {
        let mut checks = Self::NONE;
        for name in list.split(',').map(str::trim).filter(|n| !n.is_empty()) {
            match NAMES.iter().find(|(own, _)| *own == name) {
                Some((_, set)) => set(&mut checks),
                None if name == "all" => checks = Self::ALL,
                None if name == "none" => checks = Self::NONE,
                None => {
                    let names = NAMES.map(|(own, _)| own).join(", ");
                    return Err(format!("unknown check {name:?}; the checks are {names}, all, none"));
                }
            }
        }
        Ok(checks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_for_checks() {
        assert_eq!(Checks::parse("all"), Ok(Checks::ALL));
        assert_eq!(Checks::parse(""), Ok(Checks::NONE));
        let two = Checks { races: true, bounds: true, ..Checks::NONE };
        assert_eq!(Checks::parse("races, bounds"), Ok(two));
        assert_eq!(Checks::parse("bounds,uninitialized,races,barriers,division,contract"), Ok(Checks::ALL));
        assert!(Checks::parse("luck").unwrap_err().contains("races"));
    }
}
