//! The flags of `netcl train` that are settings of the run, from the table of settings.

use crate::named::checked;
use clap::builder::{PossibleValuesParser, ValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use netcl::train::config::{Check, Kind, Overlay, PRESETS, Setting, TaskKind};
use netcl::train::images::classifier;
use netcl::train::settings;

/// Settings given as flags.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Settings of language models, and those that classifiers share.
    pub overlay: Overlay,
    /// Settings that only classifiers have.
    pub images: toml::Table,
    /// A mistake that a parser of single values cannot see.
    pub mistake: Option<String>,
}

/// Builds the flag of a setting.
fn arg(setting: &'static Setting) -> Arg {
    let value = setting.value_name.map_or_else(|| setting.name.to_uppercase(), Into::into);
    let arg = Arg::new(setting.name)
        .long(setting.flag())
        .help(setting.help)
        .visible_aliases(setting.aliases)
        .value_name(value)
        .action(match setting.kind {
            _ if setting.switch => ArgAction::SetTrue,
            Kind::List | Kind::Pair => ArgAction::Append,
            _ => ArgAction::Set,
        });
    let arg = setting.group.heading().map_or_else(|| arg.clone(), |name| arg.clone().help_heading(name));
    if setting.switch {
        return arg;
    }
    let arg = if setting.several { arg.num_args(1..) } else { arg };
    match setting.kind {
        Kind::Pair => arg.num_args(1..=2).value_delimiter(',').value_parser(value_parser!(f64)),
        _ => arg.value_parser(parser(setting)),
    }
}

fn parser(setting: &'static Setting) -> ValueParser {
    match (setting.kind, setting.check) {
        _ if setting.name == "preset" => {
            PossibleValuesParser::new(PRESETS.into_iter().chain(classifier::PRESETS)).into()
        }
        (Kind::Whole(_), Check::Between(low, high)) => value_parser!(u64).range(low..=high).into(),
        (Kind::Whole(largest), _) => {
            // These values are stored as TOML, whose integers are signed.
            let largest = if setting.text.is_some() { largest } else { largest.min(i64::MAX as u64) };
            value_parser!(u64).range(0..=largest).into()
        }
        (Kind::Real | Kind::Pair, _) => value_parser!(f64).into(),
        (Kind::Bool, _) => value_parser!(bool),
        (Kind::Text | Kind::List, _) => value_parser!(std::ffi::OsString),
        (Kind::Names(names), _) => checked(names, setting.parse).into(),
    }
}

/// Returns the given value of a setting, as in the settings file.
fn typed(row: &Setting, matches: &ArgMatches) -> Option<toml::Value> {
    Some(match row.kind {
        Kind::Whole(_) => toml::Value::Integer(i64::try_from(*matches.get_one::<u64>(row.name)?).ok()?),
        Kind::Real => toml::Value::Float(*matches.get_one::<f64>(row.name)?),
        Kind::Bool => toml::Value::Boolean(*matches.get_one::<bool>(row.name)?),
        Kind::Text | Kind::List | Kind::Pair | Kind::Names(_) => {
            toml::Value::String(matches.get_raw(row.name)?.next_back()?.to_string_lossy().into_owned())
        }
    })
}

impl clap::FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut settings = Self::default();
        settings.update_from_arg_matches(matches)?;
        Ok(settings)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let given = |row: &Setting| matches.value_source(row.name) == Some(ValueSource::CommandLine);
        for row in settings::all().filter(|row| row.is_flag && given(row)) {
            if row.resume(TaskKind::Text).is_none() {
                self.images.extend(typed(row, matches).map(|value| (row.name.to_owned(), value)));
                continue;
            }
            let words: Vec<_> = matches.get_raw(row.name).into_iter().flatten().collect();
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            let words: Vec<&str> =
                if row.switch { vec!["true"] } else { words.iter().map(|word| &**word).collect() };
            if let Err(e) = self.overlay.set(row.name, &words) {
                self.mistake = Some(format!("--{} takes {}", row.flag(), e.message()));
            }
        }
        Ok(())
    }
}

impl clap::Args for Settings {
    fn augment_args(command: Command) -> Command {
        settings::all().filter(|row| row.is_flag).fold(command, |command, row| command.arg(arg(row)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
