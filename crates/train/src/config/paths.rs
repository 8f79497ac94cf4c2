//! Absolute paths in settings, so that a run does not depend on the working directory.

use super::TrainConfig;
use crate::data::records::builtin_template;
use netcl_device::{Error, Result};
use std::path::{Path, absolute};

impl TrainConfig {
    /// Returns the same settings with absolute paths, so that the run can be resumed from anywhere.
    ///
    /// # Errors
    /// `Io` if the working directory cannot be determined.
    pub fn with_absolute_paths(mut self) -> Result<Self> {
        for spec in self.data.iter_mut().chain(&mut self.eval_data) {
            *spec = absolute_spec(spec)?;
        }
        if let Some(dir) = &mut self.init {
            *dir = text(&absolute(&*dir).map_err(|e| Error::io("finding", Path::new(dir.as_str()), &e))?)?;
        }
        if let Some(template) = self.chat_template.as_mut().filter(|name| builtin_template(name).is_none()) {
            *template = absolute_spec(template)?;
        }
        if self.tokenizer != "char" {
            self.tokenizer = absolute_spec(&self.tokenizer)?;
        }
        Ok(self)
    }
}

/// Returns a file, folder or pattern as an absolute path.
fn absolute_spec(spec: &str) -> Result<String> {
    let path = Path::new(spec);
    if path.is_absolute() || spec.is_empty() {
        return Ok(spec.into());
    }
    let whole = absolute(path).map_err(|e| Error::io("finding", path, &e))?;
    let (true, false) = (spec.contains(['*', '?', '[']), path.exists()) else { return text(&whole) };
    // For a pattern, the working directory is escaped, because its name may contain brackets.
    let here = absolute(".").map_err(|e| Error::io("finding", path, &e))?;
    Ok(format!("{}/{spec}", glob::Pattern::escape(&text(&here)?)))
}

/// Returns a path as text. `Format` if it is not valid Unicode, because settings are text.
fn text(path: &Path) -> Result<String> {
    let unicode = path.to_str().map(Into::into);
    unicode.ok_or_else(|| {
        Error::format(format!("{}: the path is not valid UTF-8, which config.toml requires", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_made_absolute_and_names_are_not() {
        let here = std::env::current_dir().unwrap();
        let at = |name: &str| here.join(name).display().to_string();
        let config = TrainConfig {
            data: ["Cargo.toml", "./src", "/a/b.txt", "src/*.rs"].map(Into::into).into(),
            tokenizer: "x/tokenizer.json".into(),
            ..TrainConfig::preset("demo").unwrap()
        };
        let config = config.with_absolute_paths().unwrap();
        let pattern = format!("{}/src/*.rs", glob::Pattern::escape(&here.display().to_string()));
        assert_eq!(config.data, [at("Cargo.toml"), at("src"), "/a/b.txt".into(), pattern]);
        assert_eq!(config.tokenizer, at("x/tokenizer.json"));
        assert_eq!(config.clone().with_absolute_paths().unwrap(), config);
        let char = TrainConfig::preset("demo").unwrap().with_absolute_paths().unwrap();
        assert_eq!((char.tokenizer.as_str(), char.data.len()), ("char", 0));
    }
}
