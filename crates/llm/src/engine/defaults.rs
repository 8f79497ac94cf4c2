//! How a model's makers say that its tokens are to be drawn.

use crate::gguf::Gguf;
use crate::sampler::{Mirostat, Sampling, Step};
use netcl_tensor::{Error, Result};
use serde_json::Value;
use std::path::Path;

/// What `generation_config.json` says; of one with `do_sample` false the numbers have no effect in `transformers` either.
///
/// # Errors
/// `Io` and `Format` with the path.
pub(super) fn of_folder(folder: &Path) -> Result<Sampling> {
    let file = folder.join("generation_config.json");
    let mut out = Sampling::default();
    let text = match netcl_device::files::read_text(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(out),
        Err(error) => return Err(Error::io("reading", &file, &error)),
    };
    let context = |e: Error| e.context(file.display());
    let json: Value = serde_json::from_str(&text).map_err(|e| context(Error::format(e.to_string())))?;
    if json["do_sample"] == false {
        return Ok(out);
    }
    let number = |key: &str, to: &mut f32| {
        if let Some(x) = json[key].as_f64() {
            *to = x as f32;
        }
    };
    number("temperature", &mut out.temperature);
    number("top_p", &mut out.top_p);
    number("min_p", &mut out.min_p);
    number("typical_p", &mut out.typical_p);
    number("repetition_penalty", &mut out.repeat_penalty);
    if let Some(k) = json["top_k"].as_u64() {
        out.top_k = usize::try_from(k).unwrap_or(0);
    }
    out.validate().map_err(context)?;
    Ok(out)
}

/// What the keys `general.sampling.*` say.
///
/// # Errors
/// `Format` with file and key.
pub(super) fn of_gguf(file: &Gguf) -> Result<Sampling> {
    let mut out = Sampling::default();
    let name = |key: &str| format!("general.sampling.{key}");
    let number = |key: &str, to: &mut f32| -> Result<()> {
        if let Some(x) = file.number(&name(key))? {
            *to = x as f32;
        }
        Ok(())
    };
    number("temp", &mut out.temperature)?;
    number("top_p", &mut out.top_p)?;
    number("min_p", &mut out.min_p)?;
    number("xtc_probability", &mut out.xtc_probability)?;
    number("xtc_threshold", &mut out.xtc_threshold)?;
    number("penalty_repeat", &mut out.repeat_penalty)?;
    number("mirostat_tau", &mut out.mirostat_tau)?;
    number("mirostat_eta", &mut out.mirostat_eta)?;
    if let Some(k) = file.number(&name("top_k"))? {
        // Below zero is all of them.
        out.top_k = k.max(0.0) as usize;
    }
    if let Some(n) = file.number(&name("penalty_last_n"))? {
        out.repeat_last_n = n as i32;
    }
    if let Some(version) = file.size(&name("mirostat"))? {
        out.mirostat =
            [Mirostat::Off, Mirostat::One, Mirostat::Two].get(version).copied().unwrap_or_default();
    }
    if let Some(steps) = file.text(&name("sequence"))? {
        out.chain = Step::chain(steps).map_err(|e| e.context(file.path().display()))?;
    }
    out.validate().map_err(|e| e.context(file.path().display()))?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_says_how_its_tokens_are_drawn() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(of_folder(dir.path()).unwrap(), Sampling::default());
        let write = |text: &str| std::fs::write(dir.path().join("generation_config.json"), text).unwrap();
        write(
            r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.05}"#,
        );
        let found = of_folder(dir.path()).unwrap();
        assert_eq!((found.temperature, found.top_k, found.top_p, found.repeat_penalty), (0.6, 20, 0.9, 1.05));
        write(r#"{"do_sample": false, "temperature": 0.6}"#);
        assert_eq!(of_folder(dir.path()).unwrap(), Sampling::default());
        for (text, part) in [(r#"{"top_p": 7}"#, "top_p is 7"), ("{", "EOF")] {
            write(text);
            let error = of_folder(dir.path()).unwrap_err();
            assert!(
                error.message().contains(part) && error.message().contains("generation_config.json"),
                "{error}"
            );
        }
    }
}
