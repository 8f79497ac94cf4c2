//! The settings of all tasks, and their reference.

use crate::config::{Change, Group, Kind, SETTINGS, Setting, TrainConfig};
use crate::images::classifier;

const HEAD: &str = "# Settings of training

This page is generated from the table of settings ([table.rs](../crates/train/src/config/table.rs), and
[settings.rs](../crates/train/src/images/classifier/settings.rs) for settings that only classifiers of images have); a test compares them.
Each setting is a flag of `netcl train` and, with `_` instead of `-`, a key of `config.toml` and of Python's `Trainer`; names without dashes are
only keys. In a classifier's `config.toml`, `--val-split` is `test_part`.
The defaults are those that presets of language models start from; `netcl train --preset NAME --help` shows those of a preset.
Aliases are in parentheses.
The last two columns say whether `--resume` may change the setting, for language models and for classifiers:
from the next step on (yes), with a report about the learning rate (rate), by adding entries (add), or not at all (no);
a dash marks settings that the task does not have. The [glossary](glossary.md) explains the terms.
";

/// Returns the settings of all tasks: those of language models first, including those that classifiers share, then those that only classifiers have.
pub fn all() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().chain(classifier::SETTINGS)
}

/// Returns the text of `docs/settings.md`.
pub fn reference() -> String {
    let defaults = toml::Table::try_from(TrainConfig::base()).unwrap_or_default();
    let mut text = HEAD.to_owned();
    for group in Group::ALL {
        if let Some(heading) = group.heading() {
            text += &format!("\n## {heading}\n");
        }
        text += "\n| flag | value | default | meaning | resume | images |\n| --- | --- | --- | --- | --- | --- |\n";
        let rows = all().filter(|row| row.group == group);
        text.extend(rows.map(|row| line(row, defaults.get(row.name))));
    }
    text
}

fn line(row: &Setting, default: Option<&toml::Value>) -> String {
    let aliases: Vec<_> = row.aliases.iter().map(|alias| format!("`--{alias}`")).collect();
    let aliases = if aliases.is_empty() { String::new() } else { format!(" ({})", aliases.join(", ")) };
    let value = match row.kind {
        _ if row.switch => String::new(),
        Kind::Whole(_) => "integer".into(),
        Kind::Real => "number".into(),
        Kind::Pair => "two numbers".into(),
        Kind::Bool => "`true`, `false`".into(),
        Kind::Text => "text".into(),
        Kind::List => "texts".into(),
        Kind::Names(names) => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    };
    let default = row.default_text(default).unwrap_or_default();
    let resume = [row.text, row.images].map(|change| match change {
        Some(Change::Free) => "yes",
        Some(Change::Rate) => "rate",
        Some(Change::Added) => "add",
        Some(Change::Fixed) => "no",
        None => "–",
    });
    format!(
        "| `{}`{aliases} | {value} | {default} | {} | {} |\n",
        if row.is_flag { format!("--{}", row.flag()) } else { row.name.into() },
        row.help.replace('|', "\\|").replace('<', "&lt;").replace('*', "\\*"),
        resume.join(" | ")
    )
}
