//! The page of all commands and flags, `docs/book/flags.md`, written from the command line itself.

use clap::{Arg, Command};

const HEAD: &str = "# Flags of all commands

This page is generated from the help of the program; a test compares them. `netcl COMMAND --help` prints the same.
The defaults of `netcl train` are those of the preset `demo`. [Settings](../settings.md) shows which flags `--resume` may change, and the
[glossary](../glossary.md) explains the terms.
";

/// Returns the text of `docs/book/flags.md` for `command`, which is the whole program.
fn page(mut command: Command) -> String {
    command.build();
    let mut text = HEAD.to_owned();
    // clap moves a changed subcommand, which `train` is, to the end.
    let mut commands: Vec<&Command> = visible(&command).collect();
    commands.sort_by_key(|sub| sub.get_name() != "train");
    for sub in commands {
        describe(sub, 2, &mut text);
    }
    text
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
}

/// Adds a section for `command` with a heading of this level, and one for each of its subcommands.
fn describe(command: &Command, level: usize, text: &mut String) {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").trim();
    let name = command.get_bin_name().unwrap_or(command.get_name());
    *text += &format!("\n{} {name}\n", "#".repeat(level));
    if let Some(about) = command.get_long_about().or(command.get_about()) {
        *text += &format!("\n{}\n", escape(about.to_string().trim()));
    }
    *text += &format!("\n```text\n{usage}\n```\n");
    let args: Vec<&Arg> = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && arg.get_id() != "help" && arg.get_id() != "version")
        .collect();
    let mut headings: Vec<Option<&str>> = Vec::new();
    for heading in args.iter().map(|arg| arg.get_help_heading()) {
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    headings.sort_by_key(Option::is_some);
    for heading in headings {
        if let Some(heading) = heading {
            *text += &format!("\n**{}**\n", escape(heading));
        }
        *text += "\n| flag | meaning |\n| --- | --- |\n";
        text.extend(args.iter().filter(|arg| arg.get_help_heading() == heading).map(|arg| row(arg)));
    }
    if let Some(after) = command.get_after_help() {
        *text += &format!("\n{}\n", escape(after.to_string().trim()));
    }
    for sub in visible(command) {
        describe(sub, (level + 1).min(4), text);
    }
}

/// Returns the table row of a flag: its spellings, its help, its default and its possible values.
fn row(arg: &Arg) -> String {
    let mut flag = format!("`{}`", arg.to_string().replace('|', "\\|"));
    if let Some(short) = arg.get_short().filter(|_| arg.get_long().is_some()) {
        flag = format!("`-{short}`, {flag}");
    }
    for alias in arg.get_visible_aliases().unwrap_or_default() {
        flag += &format!(", `--{alias}`");
    }
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let paragraphs = help.split("\n\n").map(|p| p.split_whitespace().collect::<Vec<_>>().join(" "));
    let mut parts = vec![paragraphs.collect::<Vec<_>>().join(". ").replace(".. ", ". ").replace(":. ", ": ")];
    if arg.get_action().takes_values() {
        let defaults: Vec<_> = arg.get_default_values().iter().map(|v| v.to_string_lossy()).collect();
        if !defaults.is_empty() && !arg.is_hide_default_value_set() {
            parts.push(format!("[default: {}]", defaults.join(",")));
        }
        let values = arg.get_possible_values();
        let values: Vec<_> = values.iter().filter(|v| !v.is_hide_set()).map(|v| v.get_name()).collect();
        if !values.is_empty() && !arg.is_hide_possible_values_set() {
            parts.push(format!("[possible values: {}]", values.join(", ")));
        }
    }
    format!("| {flag} | {} |\n", escape(&parts.join(" ")).replace('|', "\\|"))
}

/// Escapes `<` and `*` outside of code between backticks.
fn escape(text: &str) -> String {
    let mut parts: Vec<String> = text.split('`').map(str::to_owned).collect();
    for part in parts.iter_mut().step_by(2) {
        *part = part.replace('<', "&lt;").replace('*', "\\*");
    }
    parts.join("`")
}

#[test]
fn the_page_of_flags_is_the_help() {
    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let written = page(super::command(&[]));
    assert!(written.contains("\n## netcl train\n") && written.contains("| `--zero <STAGE>` | "), "{written}");
    if std::fs::read_to_string(root.join("docs/book/flags.md")).unwrap_or_default() != written {
        std::fs::write(root.join("target/flags.md"), written).unwrap();
        panic!("docs/book/flags.md is out of date; run cp target/flags.md docs/book/flags.md");
    }
}
