//! Files of `sentence-transformers` next to a model. They define how the states of a text become its vector.

use netcl_device::files::{plain_name, read_text};
use netcl_tensor::{Error, Result};
use serde_json::Value;
use std::path::Path;

/// The list of modules, the model first.
pub const MODULES: &str = "modules.json";
/// Settings next to it.
const SETTINGS: [&str; 2] = ["config_sentence_transformers.json", "sentence_bert_config.json"];

/// Returns the names of these files in `folder`. Names of files in a module's folder include that folder, such as `1_Pooling/config.json`. Without
/// `modules.json` the list is empty.
///
/// # Errors
/// `Io` or `Format`; the message names the file.
pub fn sidecars(folder: &Path) -> Result<Vec<String>> {
    let path = folder.join(MODULES);
    if !path.is_file() {
        return Ok(Vec::new());
    }
    let text = read_text(&path).map_err(|e| Error::io("reading", &path, &e))?;
    let modules: Value =
        serde_json::from_str(&text).map_err(|e| Error::format(format!("{}: {e}", path.display())))?;
    let there = |name: &&str| folder.join(name).is_file();
    let mut names: Vec<String> =
        [MODULES].into_iter().chain(SETTINGS).filter(there).map(Into::into).collect();
    for module in modules.as_array().into_iter().flatten() {
        let kind = module["type"].as_str().unwrap_or_default();
        // The model's own module needs no folder, and paths that leave this folder are ignored.
        let own =
            module["path"].as_str().filter(|own| plain_name(own).is_ok() && !kind.ends_with("Transformer"));
        let Some(own) = own.filter(|own| folder.join(own).is_dir()) else { continue };
        let within = folder.join(own);
        let entries = std::fs::read_dir(&within).map_err(|e| Error::io("reading", &within, &e))?;
        let mut files: Vec<String> = entries
            .flatten()
            .filter(|entry| entry.path().is_file())
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| plain_name(name).is_ok())
            .map(|name| format!("{own}/{name}"))
            .collect();
        files.sort();
        names.extend(files);
    }
    names.sort();
    names.dedup();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sidecars_are_the_files_of_modules_within_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("1_Pooling/config.json", "{}");
        put("config.json", "{}");
        assert!(sidecars(dir.path()).unwrap().is_empty());
        put("sentence_bert_config.json", "{}");
        put("2_Dense/model.safetensors", "");
        put("2_Dense/config.json", "{}");
        put("2_Dense/more/config.json", "{}");
        put("other/config.json", "{}");
        put(
            MODULES,
            r#"[{"path": "", "type": "x.Transformer"}, {"path": "1_Pooling", "type": "x.Pooling"}, {"path": "2_Dense"},
                {"path": "../.."}, {"path": "3_Normalize", "type": "x.Normalize"}, {"path": 7}]"#,
        );
        let expected = [
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
            MODULES,
            "sentence_bert_config.json",
        ];
        assert_eq!(sidecars(dir.path()).unwrap(), expected);
        put(MODULES, "[");
        assert!(sidecars(dir.path()).unwrap_err().message().contains(MODULES));
    }
}
