//! Defaults in the help of `netcl train`. They depend on the preset, so clap cannot know them; this module adds them to the help.

use clap::Command;
use netcl::train::config::{PRESETS, TrainConfig, setting, usual_preset};
use std::ffi::OsString;

/// Returns the preset whose defaults are shown: the one on the command line, or the default preset.
pub fn preset(args: &[OsString]) -> &'static str {
    let words: Vec<&str> = args.iter().filter_map(|arg| arg.to_str()).collect();
    let after = |i: usize| words.get(i + 1).copied();
    let mut named = words.iter().enumerate().filter_map(|(i, word)| match *word {
        "--preset" => after(i),
        word => word.strip_prefix("--preset="),
    });
    let given = |flag: &str| {
        let begins =
            |word: &str| word.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='));
        words.iter().any(|word| begins(word))
    };
    let usual = usual_preset(given("--init"), given("--lora"), false);
    named.next_back().and_then(|name| PRESETS.into_iter().find(|known| *known == name)).unwrap_or(usual)
}

/// Adds a preset's defaults to the help of the flags of `command`, which is `train`.
pub fn show(command: Command, preset: &str) -> Command {
    let Ok(config) = TrainConfig::preset(preset) else { return command };
    let Ok(table) = toml::Table::try_from(&config) else { return command };
    let command = command.mut_args(|arg| {
        let Some(setting) = setting(arg.get_id().as_str()) else { return arg };
        let default = match setting.name {
            "preset" => {
                let [init, lora] = [false, true].map(|lora| usual_preset(true, lora, false));
                Some(usual_preset(preset == init, preset == lora, false).to_owned())
            }
            name => setting.default_text(table.get(name)),
        };
        let Some(default) = default else { return arg };
        arg.help(format!("{} [default: {default}]", setting.help))
    });
    command.after_help(format!(
        "The defaults shown are those of the preset {preset}; `netcl train --preset NAME --help` shows another preset's. The preset is finetune \
         with --init, lora with --lora, and demo-tiny on a simulated device, unless --preset names one."
    ))
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
