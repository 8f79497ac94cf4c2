//! Settings from environment variables, read once.

use aethercl::Checks;
use aethercl::model::Profile;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// Settings of the driver.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `AETHERCL_PROFILES`: comma-separated names and files of profiles, one device per profile [default: the built-in profiles].
    pub profiles: Vec<Profile>,
    /// `AETHERCL_CHECK`: checks applied to every launch.
    pub checks: Checks,
    /// `AETHERCL_TIMEOUT`: limit of a work-group in seconds of processor time; 0 for no limit.
    pub timeout: Option<Duration>,
    /// `AETHERCL_REPORT`: file for the report at process exit; `%p` is replaced with the process id. If set, every launch is timed.
    pub report: Option<PathBuf>,
    /// `AETHERCL_REPORT_DETAIL`: adds the data of the HTML page to the report: calls, commands, counters by source line, memory over time.
    pub detail: bool,
    /// `AETHERCL_QUIET`: suppresses findings and kernel failures on standard error.
    pub quiet: bool,
}

/// Returns the settings. An invalid variable is reported once on standard error and ignored.
pub fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| read(&|name| std::env::var(name).ok().filter(|v| !v.is_empty()), &say))
}

/// Prints a line to standard error.
pub fn say(line: &str) {
    use std::io::Write;
    // A closed stream is not an error of the program.
    let _ = writeln!(std::io::stderr(), "aethercl: {line}");
}

fn read(variable: &dyn Fn(&str) -> Option<String>, complain: &dyn Fn(&str)) -> Settings {
    let list = variable("AETHERCL_PROFILES").unwrap_or_default();
    let mut profiles = Vec::new();
    for name in list.split(',').map(str::trim).filter(|n| !n.is_empty()) {
        match profile(name) {
            Ok(profile) => profiles.push(profile),
            Err(why) => complain(&format!("AETHERCL_PROFILES: {why}")),
        }
    }
    if profiles.is_empty() {
        profiles.extend(DEFAULT.iter().filter_map(|name| Profile::named(name).ok()));
    }
    let checks = Checks::parse(&variable("AETHERCL_CHECK").unwrap_or_default());
    let checks = checks.unwrap_or_else(|why| {
        complain(&format!("AETHERCL_CHECK: {why}"));
        Checks::NONE
    });
    let timeout = match variable("AETHERCL_TIMEOUT").map(|t| (t.parse::<f64>(), t)) {
        None => Some(aethercl::MAX_TIME),
        Some((Ok(0.0), _)) => None,
        Some((Ok(seconds), _)) if seconds > 0.0 && seconds < 1e9 => Some(Duration::from_secs_f64(seconds)),
        Some((_, text)) => {
            complain(&format!("AETHERCL_TIMEOUT: {text:?} is not a number of seconds"));
            Some(aethercl::MAX_TIME)
        }
    };
    Settings {
        profiles,
        checks,
        timeout,
        report: variable("AETHERCL_REPORT").map(PathBuf::from),
        detail: variable("AETHERCL_REPORT_DETAIL").is_some() && variable("AETHERCL_REPORT").is_some(),
        quiet: variable("AETHERCL_QUIET").is_some(),
    }
}

/// Default devices in order: five real GPUs, and `teaching`, a fictional one with round figures.
const DEFAULT: [&str; 7] = ["h200", "h100", "rx7900xtx", "arc-a770", "adreno-750", "mali-g720", "teaching"];

fn profile(name: &str) -> Result<Profile, String> {
    if !name.ends_with(".toml") {
        return Profile::named(name).map_err(|e| e.to_string());
    }
    let text = std::fs::read_to_string(name).map_err(|e| format!("{name}: {e}"))?;
    Profile::parse(&text).map_err(|e| format!("{name}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn from(pairs: &[(&str, &str)]) -> (Settings, Vec<String>) {
        let said = RefCell::new(Vec::new());
        let find = |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_string());
        let settings = read(&find, &|line| said.borrow_mut().push(line.to_string()));
        (settings, said.into_inner())
    }

    #[test]
    fn profiles_checks_and_times_are_read() {
        let (s, said) = from(&[
            ("AETHERCL_PROFILES", "arc-a770, teaching"),
            ("AETHERCL_CHECK", "bounds,races"),
            ("AETHERCL_TIMEOUT", "0.5"),
        ]);
        let names: Vec<&str> = s.profiles.iter().map(|p| p.name.as_str()).collect();
        assert_eq!((names, said.len()), (vec!["arc-a770", "teaching"], 0));
        assert!(s.checks.bounds && s.checks.races && !s.checks.barriers);
        assert_eq!(s.timeout, Some(Duration::from_millis(500)));
        assert_eq!(from(&[("AETHERCL_TIMEOUT", "0")]).0.timeout, None);
    }

    #[test]
    fn what_cannot_be_understood_is_said_and_left() {
        let wrong = [("AETHERCL_PROFILES", "voodoo"), ("AETHERCL_CHECK", "luck"), ("AETHERCL_TIMEOUT", "-1")];
        let (s, said) = from(&wrong);
        assert_eq!(s.profiles[0].name, "h200");
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(said[0].contains("voodoo") && said[1].contains("luck") && said[2].contains("-1"));
    }
}
