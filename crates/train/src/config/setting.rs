//! Properties of a setting other than its value: a row of the [table](super::SETTINGS).

use super::value::{Kind, flag};
use netcl_device::Result;

/// A row of the table of settings.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Key in `config.toml`.
    pub name: &'static str,
    /// Form of its values.
    pub kind: Kind,
    /// Help of the flag.
    pub help: &'static str,
    /// Group in the help, in `config.toml` and in the reference.
    pub group: Group,
    /// Name of the value in the help; default: the key in capitals.
    pub value_name: Option<&'static str>,
    /// Other spellings of the flag.
    pub aliases: &'static [&'static str],
    /// Names that other programs use for the key; they are suggested.
    pub synonyms: &'static [&'static str],
    /// Values that are valid, regardless of the other settings.
    pub check: Check,
    /// Default in words, for settings without a value.
    pub unset: Option<&'static str>,
    /// Whether the flag alone means `true`.
    pub switch: bool,
    /// Whether the flag takes several values at once.
    pub several: bool,
    /// Whether it is a flag. Without one it follows from the preset.
    pub is_flag: bool,
    /// Whether a resumed language model may change it; `None` if language models do not have it.
    pub text: Option<Change>,
    /// Whether a resumed classifier of images may change it; `None` if classifiers do not have it.
    pub images: Option<Change>,
    /// Refuses text that is not a value.
    pub parse: fn(&str) -> Result<()>,
}

impl Setting {
    /// Creates a setting of language models. The table fills in name, type and help.
    pub(crate) const fn new(group: Group, text: Change) -> Self {
        Self { text: Some(text), images: None, ..Self::of_images(group, text) }
    }

    /// Creates a setting that only classifiers have.
    pub(crate) const fn of_images(group: Group, images: Change) -> Self {
        Self {
            name: "",
            kind: Kind::Text,
            help: "",
            group,
            value_name: None,
            aliases: &[],
            synonyms: &[],
            check: Check::Any,
            unset: None,
            switch: false,
            several: false,
            is_flag: true,
            text: None,
            images: Some(images),
            parse: |_| Ok(()),
        }
    }

    /// Adds this setting to classifiers.
    pub(crate) const fn images(self, change: Change) -> Self {
        Self { images: Some(change), ..self }
    }

    pub(crate) const fn value(self, name: &'static str) -> Self {
        Self { value_name: Some(name), ..self }
    }

    pub(crate) const fn alias(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    pub(crate) const fn also(self, synonyms: &'static [&'static str]) -> Self {
        Self { synonyms, ..self }
    }

    pub(crate) const fn check(self, check: Check) -> Self {
        Self { check, ..self }
    }

    pub(crate) const fn unset(self, text: &'static str) -> Self {
        Self { unset: Some(text), ..self }
    }

    pub(crate) const fn switch(self) -> Self {
        Self { switch: true, ..self }
    }

    pub(crate) const fn several(self) -> Self {
        Self { several: true, ..self }
    }

    pub(crate) const fn without_flag(self) -> Self {
        Self { is_flag: false, ..self }
    }

    /// Returns the flag, without its two dashes.
    pub fn flag(&self) -> String {
        flag(self.name)
    }

    /// Returns the default in the notation of the flag, from its value in the file; `None` if there is neither a value nor a text.
    pub fn default_text(&self, value: Option<&toml::Value>) -> Option<String> {
        let value = value.filter(|_| !self.switch).map(written).filter(|text| !text.is_empty());
        value.or_else(|| self.unset.map(Into::into))
    }

    /// Returns whether a resumed run of this task may change it; `None` if the task does not have it.
    pub fn resume(&self, task: TaskKind) -> Option<Change> {
        match task {
            TaskKind::Text => self.text,
            TaskKind::Images => self.images,
        }
    }
}

/// Formats a value in the notation of its flag.
fn written(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Float(small) if *small != 0.0 && small.abs() < 1e-4 => format!("{small:e}"),
        toml::Value::Array(values) => values.iter().map(written).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// The kind of model to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// A language model.
    Text,
    /// A classifier of images.
    Images,
}

/// Group of settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// The source of the other settings.
    General,
    /// The model.
    Model,
    /// Data and tokenizer.
    Data,
    /// Objective of the loss.
    Objective,
    /// Optimizer and schedule.
    Optimizer,
    /// Batches, steps and intervals.
    Run,
    /// Devices, types and memory.
    Device,
}

impl Group {
    /// All groups, in the order of `config.toml`.
    pub const ALL: [Self; 7] =
        [Self::General, Self::Model, Self::Data, Self::Objective, Self::Optimizer, Self::Run, Self::Device];

    /// Returns the heading in the help; the first group has none.
    pub const fn heading(self) -> Option<&'static str> {
        match self {
            Self::General => None,
            Self::Model => Some("Model"),
            Self::Data => Some("Data"),
            Self::Objective => Some("Objective"),
            Self::Optimizer => Some("Optimizer"),
            Self::Run => Some("Run"),
            Self::Device => Some("Device"),
        }
    }
}

/// Handling of a setting that differs from the stored one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Applies from the next step on.
    Free,
    /// Applies from the next step on; a resulting jump of the learning rate is reported.
    Rate,
    /// Entries may be added.
    Added,
    /// Rejected, because it would be a different run.
    Fixed,
}

impl Change {
    /// All values, in the order in which they are reported.
    pub const ALL: [Self; 4] = [Self::Fixed, Self::Added, Self::Rate, Self::Free];
}

/// Values that are valid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Check {
    /// All of the type.
    Any,
    /// Integers from 1.
    AtLeastOne,
    /// 0 to below 1.
    Fraction,
    /// Finite numbers above 0.
    AboveZero,
    /// Finite numbers from 0.
    FromZero,
    /// Integers from the first to the last.
    Between(u64, u64),
    /// Text with at least one character.
    NotEmpty,
}

impl Check {
    /// Returns why the value of a flag, its `numbers` or its `text`, is not valid.
    pub(crate) fn refusal(self, flag: &str, numbers: &[f64], text: Option<&str>) -> Option<String> {
        let valid = |number: &f64| match self {
            Self::Any | Self::NotEmpty => true,
            Self::AtLeastOne => *number >= 1.0,
            Self::Fraction => (0.0..1.0).contains(number),
            Self::AboveZero => *number > 0.0 && number.is_finite(),
            Self::FromZero => *number >= 0.0 && number.is_finite(),
            Self::Between(low, high) => (low as f64..=high as f64).contains(number),
        };
        if self == Self::NotEmpty {
            return text.is_some_and(str::is_empty).then(|| format!("--{flag} is empty"));
        }
        if numbers.iter().all(valid) {
            return None;
        }
        let both = if numbers.len() > 1 { "both " } else { "" };
        let given = numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        Some(match self {
            Self::AtLeastOne => format!("--{flag} is {given}; it must be at least 1"),
            Self::Fraction => format!("--{flag} {given} must {both}be at least 0 and below 1"),
            Self::AboveZero => format!("--{flag} {given} must {both}be above 0"),
            Self::Between(low, high) => format!("--{flag} {given} must {both}be from {low} to {high}"),
            Self::FromZero | Self::Any | Self::NotEmpty => {
                format!("--{flag} {given} must {both}be at least 0")
            }
        })
    }
}
