//! Reads and writes `config.toml`. Unknown keys are errors; written keys are grouped.

use super::{Group, Overlay, SETTINGS, TrainConfig};
use netcl_device::{Error, Result, nearest};
use std::path::Path;

impl Overlay {
    /// Reads a settings file. Returns `Format` with file and line; for an unknown key, with the most similar known one.
    pub fn read(path: &Path) -> Result<Self> {
        let text = netcl_device::files::read_text(path).map_err(|e| Error::io("reading", path, &e))?;
        Self::from_toml(&text).map_err(|e| e.context(path.display()))
    }

    /// Parses settings from TOML text.
    pub fn from_toml(text: &str) -> Result<Self> {
        let wrong = |e: toml::de::Error| Error::format(e.to_string().trim_end().to_owned());
        let table: toml::Table = toml::from_str(text).map_err(wrong)?;
        for (key, value) in &table {
            if !known().any(|known| known == key) {
                let line = text
                    .lines()
                    .position(|line| line.trim_start_matches([' ', '\t', '[', '"']).starts_with(&**key));
                let line = line.map(|line| format!("line {}: ", line + 1)).unwrap_or_default();
                let hint = match nearest_key(key) {
                    _ if value.is_table() => "keys must be at the top level, without [tables]".to_owned(),
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("the keys are {}", known().collect::<Vec<_>>().join(", ")),
                };
                return Err(Error::format(format!("{line}unknown key `{key}`; {hint}")));
            }
        }
        toml::from_str(text).map_err(wrong)
    }
}

impl TrainConfig {
    /// Returns the text of a `config.toml` with these settings.
    pub fn to_toml(&self) -> Result<String> {
        let table = toml::Table::try_from(self)
            .map_err(|e| Error::internal(format!("cannot convert the settings to TOML: {e}")))?;
        let line = |key: &str| table.get(key).map(|value| format!("{key} = {value}\n")).unwrap_or_default();
        let mut text = "# Repeat this run: netcl train --config config.toml\n".to_owned();
        for group in Group::ALL {
            text +=
                &group.heading().map_or_else(String::new, |name| format!("\n# {}\n", name.to_lowercase()));
            text.extend(SETTINGS.iter().filter(|row| row.group == group).map(|row| line(row.name)));
        }
        Ok(text)
    }
}

fn known() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|row| row.name)
}

fn nearest_key(key: &str) -> Option<&'static str> {
    let plain = key.to_ascii_lowercase().replace('-', "_");
    let synonym = SETTINGS.iter().find(|row| row.synonyms.contains(&&*plain)).map(|row| row.name);
    synonym.or_else(|| nearest(&plain, known()))
}
