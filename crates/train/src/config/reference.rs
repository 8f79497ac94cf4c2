//! The reference of all settings, from their table.

use super::{Change, Group, Kind, SETTINGS, Setting, TrainConfig};

const HEAD: &str = "# Settings of training

This page follows from the table of settings ([table.rs](../crates/train/src/config/table.rs)); a test compares both. Each setting is a flag of
`netcl train` and, with `_` instead of `-`, a key of `config.toml` and of Python's `Trainer`. Defaults are those that presets start from;
`netcl train --preset NAME --help` has those of a preset. Aliases are in parentheses.
The last two columns say whether `--resume` may change the setting, of language models and of classifiers of images:
from the next step on (yes), with a report about the learning rate (rate), by adding entries (add), or not at all (no);
a dash marks settings that classifiers do not have.
";

/// The text of `docs/settings.md`.
pub fn reference() -> String {
    let defaults = toml::Table::try_from(TrainConfig::base()).unwrap_or_default();
    let mut text = HEAD.to_owned();
    for group in Group::ALL {
        if let Some(heading) = group.heading() {
            text += &format!("\n## {heading}\n");
        }
        text += "\n| flag | value | default | meaning | resume | images |\n| --- | --- | --- | --- | --- | --- |\n";
        let rows = SETTINGS.iter().filter(|row| row.group == group);
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
    let resume = [Some(row.text), row.images].map(|change| match change {
        Some(Change::Free) => "yes",
        Some(Change::Rate) => "rate",
        Some(Change::Added) => "add",
        Some(Change::Fixed) => "no",
        None => "–",
    });
    format!(
        "| `--{}`{aliases} | {value} | {default} | {} | {} |\n",
        row.flag(),
        row.help.replace('|', "\\|").replace('<', "&lt;").replace('*', "\\*"),
        resume.join(" | ")
    )
}
