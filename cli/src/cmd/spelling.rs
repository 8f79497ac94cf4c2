//! Spelling of flags, and the errors for mistaken flags.

use clap::builder::ValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::any::TypeId;
use std::collections::BTreeSet;
use std::error::Error as _;
use std::ffi::OsString;

/// A suggestion is dropped if more than one letter in `ALIKE` differs.
const ALIKE: usize = 3;

/// Collects the long flags of a command and its subcommands.
fn longs(command: &clap::Command, all: &mut BTreeSet<String>) {
    for arg in command.get_arguments() {
        all.extend(arg.get_long().map(str::to_owned));
        all.extend(arg.get_all_aliases().into_iter().flatten().map(str::to_owned));
    }
    command.get_subcommands().for_each(|inner| longs(inner, all));
}

/// Replaces underscores in flags (`--max_iters`, as in nanoGPT) by dashes. Keeps words that are not flags, and everything after `--`.
pub fn with_dashes(command: &clap::Command, args: &[OsString]) -> Vec<OsString> {
    let mut known = BTreeSet::new();
    longs(command, &mut known);
    let ends = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    let one = |(at, arg): (usize, &OsString)| {
        let text = arg.to_str().filter(|_| at < ends)?;
        let (name, value) =
            text.strip_prefix("--")?.split_once('=').map_or((&text[2..], None), |(n, v)| (n, Some(v)));
        let dashed = name.replace('_', "-");
        if dashed == name || !known.contains(&dashed) {
            return None;
        }
        Some(value.map_or(format!("--{dashed}"), |value| format!("--{dashed}={value}")).into())
    };
    args.iter().enumerate().map(|(at, arg)| one((at, arg)).unwrap_or_else(|| arg.clone())).collect()
}

/// Returns whether a flag takes a number.
fn is_number(parser: &ValueParser) -> bool {
    let types = [
        TypeId::of::<f64>(),
        TypeId::of::<f32>(),
        TypeId::of::<usize>(),
        TypeId::of::<u64>(),
        TypeId::of::<u32>(),
        TypeId::of::<u16>(),
        TypeId::of::<u8>(),
        TypeId::of::<i64>(),
        TypeId::of::<i32>(),
    ];
    types.iter().any(|wanted| parser.type_id() == *wanted)
}

/// Allows numbers of `command` to start with a minus. A negative one is then refused for its value, not as an unknown flag.
pub fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let negative = |arg: clap::Arg| {
        let takes =
            arg.get_long().is_some() && arg.get_action().takes_values() && is_number(arg.get_value_parser());
        if takes { arg.allow_negative_numbers(true) } else { arg }
    };
    command.mut_args(negative).mut_subcommands(with_negative_numbers)
}

/// Adds the expected number to the error, and drops dissimilar suggestions.
pub fn mended(mut error: clap::Error, command: &mut clap::Command) -> clap::Error {
    let text = |error: &clap::Error, kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let Some(flag) = text(&error, ContextKind::InvalidArg) else { return error };
    if error.kind() == ErrorKind::UnknownArgument {
        let name = flag.trim_start_matches('-').replace('_', "-");
        if ["lora", "qlora", "peft", "dora"].iter().any(|word| name.starts_with(word)) {
            let message = format!(
                "unexpected argument '{flag}': adapters are trained with --lora 16, or with settings such as --lora r=16,alpha=32,targets=q_proj+v_proj"
            );
            return command.error(ErrorKind::UnknownArgument, message);
        }
        let suggested = text(&error, ContextKind::SuggestedArg).unwrap_or_default();
        let suggested = suggested.trim_start_matches('-');
        let longer = name.chars().count().max(suggested.chars().count());
        let contained = suggested.contains(&*name) || name.contains(suggested) && suggested.len() > 2;
        if !contained && distance(&name, suggested) * ALIKE > longer {
            error.remove(ContextKind::SuggestedArg);
            error.remove(ContextKind::Suggested);
        }
        return error;
    }
    let (Some(value), ErrorKind::ValueValidation) = (text(&error, ContextKind::InvalidValue), error.kind())
    else {
        return error;
    };
    let source = error.source();
    let expected = match source {
        Some(e) if e.is::<std::num::ParseIntError>() => "a whole number of at least 0",
        Some(e) if e.is::<std::num::ParseFloatError>() => "a number such as 0.1 or 1e-4",
        _ => return error,
    };
    command.error(
        ErrorKind::ValueValidation,
        format!("invalid value '{value}' for '{flag}': expected {expected}"),
    )
}

/// Returns the number of letters to insert, delete or replace (Levenshtein 1966).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut before = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let changed = before + usize::from(x != *y);
            before = row[j + 1];
            row[j + 1] = changed.min(before + 1).min(row[j] + 1);
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::{Cli, command};
    use clap::CommandFactory;

    fn refused(line: &str) -> String {
        let args: Vec<OsString> = line.split(' ').map(Into::into).collect();
        let mut known = command(&args);
        let args = with_dashes(&known, &args);
        let error = known.try_get_matches_from_mut(args).expect_err(line);
        mended(error, &mut known).to_string()
    }

    /// Every flag of every command is accepted with nanoGPT's underscores.
    #[test]
    fn every_flag_is_taken_with_underscores_and_with_dashes() {
        let mut all = BTreeSet::new();
        longs(&Cli::command(), &mut all);
        assert!(all.len() > 100 && all.contains("gpu-id") && all.contains("max-iters"));
        for name in &all {
            assert!(
                !name.contains('_'),
                "--{name}: use dashes in the name; underscores are accepted in their place"
            );
            for (value, expected) in [("", ""), ("=a_b", "=a_b")] {
                let written: OsString = format!("--{}{value}", name.replace('-', "_")).into();
                let args = with_dashes(&Cli::command(), &["netcl".into(), "train".into(), written]);
                assert_eq!(args[2], OsString::from(format!("--{name}{expected}")));
            }
        }
        let kept: Vec<OsString> = ["netcl", "--no_such", "a_b", "--", "--max_iters"].map(Into::into).into();
        assert_eq!(with_dashes(&Cli::command(), &kept), kept);
        let line = "netcl train --max_iters 5 --learning_rate=1e-4 --batch_size 2 --block_size 8 --gpu_id 0 --weight_decay 0";
        let args: Vec<OsString> = line.split(' ').map(Into::into).collect();
        let known = command(&args);
        assert!(known.clone().try_get_matches_from(with_dashes(&known, &args)).is_ok());
    }

    #[test]
    fn a_mistaken_number_names_flag_and_range() {
        for (line, part) in [
            ("netcl train --steps -1", "'-1' for '--steps <STEPS>': expected a whole number of at least 0"),
            ("netcl train --batch x", "'x' for '--batch <BATCH>': expected a whole number"),
            ("netcl train --batch -5", "'--batch <BATCH>': expected a whole number"),
            ("netcl train --lr fast", "'fast' for '--lr <LR>': expected a number such as"),
            ("netcl train --watchdog -1", "--watchdog"),
        ] {
            let said = refused(line);
            assert!(said.contains(part), "{line}: {said}");
        }
        // A negative rate parses as a number; the settings then refuse it and print their range.
        let args: Vec<OsString> =
            "netcl train --lr -1 --weight-decay -0.1".split(' ').map(Into::into).collect();
        assert!(command(&args).try_get_matches_from(args).is_ok());
    }

    #[test]
    fn another_word_is_not_suggested() {
        let said = refused("netcl train --lora-r 8");
        assert!(said.contains("adapters are trained with --lora 16") && !said.contains("--lr"), "{said}");
        for (line, near) in [
            ("netcl train --stps 5", Some("--steps")),
            ("netcl train --warmupp 5", Some("--warmup")),
            ("netcl train --zzzz 5", None),
        ] {
            let said = refused(line);
            match near {
                Some(near) => assert!(said.contains(near), "{line}: {said}"),
                None => assert!(!said.contains("similar"), "{line}: {said}"),
            }
        }
        assert_eq!((distance("lora-r", "lr"), distance("", "abc"), distance("abc", "abd")), (4, 3, 1));
    }
}
