//! Embeddings of whole texts.

use super::LoadedModel;
use netcl_model::layers::Mode;
use netcl_model::model::Model as _;
use netcl_tensor::{Error, Result, Tensor, no_grad};

impl LoadedModel {
    /// Returns the embedding of a text: the outputs of the last norm, pooled according to the model's `modules.json` or the keys of its GGUF file.
    /// The default is their mean, normalized to length 1.
    ///
    /// # Errors
    /// `Unsupported` for an unsupported module; `Format` for an empty list, or more than `max_seq_length` tokens; device errors.
    pub fn embed(&self, ids: &[u32]) -> Result<Vec<f32>> {
        let pooling = self.pooling.as_ref().map_err(Clone::clone)?;
        if ids.is_empty() {
            return Err(Error::format("an empty text cannot be embedded"));
        }
        if let Some(longest) = pooling.longest.filter(|longest| ids.len() > *longest) {
            return Err(Error::format(format!(
                "the text has {} tokens, but max_seq_length of the model's pooling is {longest}: shorten it",
                ids.len()
            )));
        }
        let tensor = Tensor::from_u32(self.decoder().params().device(), [1, ids.len()], ids)?;
        let states = no_grad(|| self.decoder().features(&tensor, Mode::eval()))?.to_vec()?;
        Ok(pooling.of(&states, ids.len()))
    }
}

#[cfg(test)]
mod tests {
    use crate::model::{self, Mix, OutputFormat, Source};
    use serde_json::{Value, json};
    use std::path::Path;

    fn folder(files: &[(&str, Value)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, json) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, json.to_string()).unwrap();
        }
        dir
    }

    fn converted(from: &Path, to: &Path, target: OutputFormat) {
        let options = model::WriteOptions { mix: Mix::named("f32").unwrap(), importance: None };
        model::convert(&Source::open(from).unwrap(), to, target, &options, &mut |_| Ok(())).unwrap();
    }

    fn modules(last: &[&str]) -> Value {
        let types = ["Transformer", "Pooling"].iter().chain(last).enumerate();
        let one = |(i, name): (usize, &&str)| {
            let path = if i == 0 { String::new() } else { format!("{i}_{name}") };
            json!({ "idx": i, "name": i.to_string(), "path": path, "type": format!("sentence_transformers.models.{name}") })
        };
        types.map(one).collect()
    }

    /// Compares with the vectors of `sentence-transformers` for the states of a tiny model, from `tools/golden_pooling.py`. A GGUF file converted
    /// from the folder, and the folder converted from that file, give the same vectors.
    #[test]
    fn embeddings_are_those_of_sentence_transformers() {
        let tiny = super::super::tests::tiny("qwen3");
        let golden = std::fs::read_to_string(tiny.join("../../pooling.json")).unwrap();
        let golden: Value = serde_json::from_str(&golden).unwrap();
        let ids: Vec<u32> = serde_json::from_value(golden["ids"].clone()).unwrap();
        let device = super::super::tests::device();
        for row in golden["rows"].as_array().unwrap() {
            let last: &[&str] = if row["normalize"] == true { &["Normalize"] } else { &[] };
            let config = json!({ "embedding_dimension": 24, "pooling_mode": row["mode"] });
            let dir = folder(&[("modules.json", modules(last)), ("1_Pooling/config.json", config)]);
            for file in ["config.json", "model.safetensors"] {
                std::fs::copy(tiny.join(file), dir.path().join(file)).unwrap();
            }
            let expected: Vec<f32> = serde_json::from_value(row["vector"].clone()).unwrap();
            let (file, back) = (dir.path().join("m.gguf"), dir.path().join("back"));
            converted(dir.path(), &file, OutputFormat::Gguf);
            converted(&file, &back, OutputFormat::Folder);
            for path in [dir.path(), &file, &back] {
                let model = super::super::tests::open(path, &device, super::super::tests::EXACT).unwrap();
                let found = model.embed(&ids).unwrap();
                let most = expected.iter().fold(0f32, |most, v| most.max(v.abs()));
                let off = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / most;
                assert!(found.len() == expected.len() && off <= 1e-5, "{row}, {}: {off:.1e}", path.display());
            }
        }
    }
}
