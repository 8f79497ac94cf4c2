//! Defaults in the help of `netcl train`. They are those of a preset, so clap cannot know them: they are put into the help's text.

use clap::Command;
use netcl::train::config::{PRESETS, TrainConfig, usual_preset};
use std::ffi::OsString;

/// The preset whose defaults are shown: the one that is named on the command line, else the one taken where none is.
pub fn preset(args: &[OsString]) -> &'static str {
    let words: Vec<&str> = args.iter().filter_map(|arg| arg.to_str()).collect();
    let after = |i: usize| words.get(i + 1).copied();
    let mut named = words.iter().enumerate().filter_map(|(i, word)| match *word {
        "--preset" => after(i),
        word => word.strip_prefix("--preset="),
    });
    let usual =
        usual_preset(words.iter().any(|word| *word == "--init" || word.starts_with("--init=")), false);
    named.next_back().and_then(|name| PRESETS.into_iter().find(|known| *known == name)).unwrap_or(usual)
}

/// `command`, which is that of `train`, with the defaults of a preset in the help of its flags.
pub fn show(command: Command, preset: &str) -> Command {
    let Ok(config) = TrainConfig::preset(preset) else { return command };
    let Ok(table) = toml::Table::try_from(&config) else { return command };
    let command = command.mut_args(|arg| {
        let id = arg.get_id().as_str().to_owned();
        let value = match (id.as_str(), table.get(&id)) {
            ("data", _) => return arg,
            ("preset", _) => usual_preset(preset == usual_preset(true, false), false).to_owned(),
            ("vocab", None) => "the tokenizer's, from 1024 on rounded up to a multiple of 64".to_owned(),
            (_, Some(value)) => text(value),
            (_, None) => return arg,
        };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        arg.help(format!("{help} [default: {value}]"))
    });
    command.after_help(format!(
        "Defaults are those of the preset {preset}; `netcl train --preset NAME --help` shows those of another one. Where none is named, training \
         from --init takes the preset finetune, and a simulated device takes demo-tiny."
    ))
}

/// A value as one writes it behind its flag.
fn text(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preset_of_the_command_line_is_found() {
        for (line, name) in [
            ("netcl train", "demo"),
            ("netcl train --preset char --help", "char"),
            ("netcl train --preset=gpt2-124m", "gpt2-124m"),
            ("netcl train --preset char --preset char-cpu", "char-cpu"),
            ("netcl train --preset nothing", "demo"),
            ("netcl train --preset", "demo"),
            ("netcl train --init model --help", "finetune"),
            ("netcl train --init=model --preset char --help", "char"),
        ] {
            let args: Vec<OsString> = line.split(' ').map(Into::into).collect();
            assert_eq!(preset(&args), name, "{line}");
        }
    }
}
