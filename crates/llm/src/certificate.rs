//! Certificate of an export: the exported files are read back and compared with the trained weights.
//!
//! Each of 64 probe prompts must have the same text by the chat template, the same tokens, the same logits and the same greedy continuation. Begin
//! and end tokens must be the same. Files of other types than f32 contain rounded weights. Their tensors must have the bytes of the trained weights
//! in these types, and an f32 file of the same weights gives the logits.

use crate::engine::prompt::{Prompts, Talk};
use crate::engine::{LoadedModel, Options, TextParts};
use crate::model::{Change, Placed, Source, stored_as};
use crate::tokenizer::{Specials, Tokenizer};
use netcl_model::model::Model as _;
use netcl_tensor::quant::Activations;
use netcl_tensor::{DType, Device, Error, Result};
use serde_json::{Value as Json, json};
use std::path::{Path, PathBuf};

/// Number of probe prompts.
pub const PROBES: usize = 64;
/// Tokens that continue each prompt.
const CONTINUED: usize = 8;
/// Largest difference of logits, relative to the largest logit of the prompt if that exceeds 1.
const LOGITS: f32 = 1e-4;
/// Tokens of a prompt that are compared.
const MOST: usize = 128;

/// Texts of probe prompts.
const TEXTS: [&str; 16] = [
    "Hello!",
    "What is the capital of France?",
    "Write a haiku about rain.",
    "Once upon a time there was a little girl named Lily.",
    "12 + 30 = ?",
    "fn main() {\n    println!(\"hi\");\n}",
    "  two spaces, a\ttab and a line\nbreak  ",
    "Übung macht den Meister: süß, weiß, groß.",
    "日本語の文章です。",
    "Привет, как дела?",
    "🦀 + 🐍 = ?",
    "{\"name\": \"value\", \"list\": [1, 2, 3]}",
    "don't, we'll, I've — \"quoted\"…",
    "</s> <|im_end|> [INST] are only text here",
    "A",
    "Summarize: the quick brown fox jumps over the lazy dog, again and again, until the evening comes.",
];

/// An export to check.
#[derive(Clone, Debug)]
pub enum Exported {
    /// A whole model: a GGUF file, or a folder.
    Model {
        /// Its path.
        path: PathBuf,
        /// The same weights in f32, if the type is another one.
        exact: Option<PathBuf>,
    },
    /// An adapter, in a folder or a GGUF file, for the model at `base`.
    Adapter {
        /// Its path.
        path: PathBuf,
        /// Its base model.
        base: PathBuf,
    },
}

/// Results of a check that has passed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Certificate {
    /// Prompts compared.
    pub probes: usize,
    /// Whether they are conversations in a chat template.
    pub template: bool,
    /// The begin and the end token.
    pub ends: [Option<u32>; 2],
    /// Largest difference of logits, relative to the largest logit if that exceeds 1.
    pub logits: f32,
    /// Tokens of continuations compared.
    pub tokens: usize,
    /// Tensors whose stored bytes were compared.
    pub tensors: usize,
}

impl Certificate {
    /// Compares the steps of a probe, and counts them; returns the first difference.
    fn compare(&mut self, probe: usize, ours: &[Step], theirs: &[Step]) -> std::result::Result<(), String> {
        for (at, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
            let off = ours.off(theirs);
            if off > LOGITS || off.is_nan() {
                let place = match at {
                    0 => "after the prompt".to_owned(),
                    _ => format!("after {at} tokens of the answer"),
                };
                return Err(format!(
                    "probe {probe}: the logits {place} differ by {off:.1e} of the largest, more than {LOGITS:.0e}"
                ));
            }
            // Between logits that are closer than their rounding, both choices are right.
            if ours.best != theirs.best && ours.lead > 2.0 * LOGITS {
                return Err(format!(
                    "probe {probe}: greedy token {at} is {}, expected {}",
                    theirs.best, ours.best
                ));
            }
            self.logits = self.logits.max(off);
            self.tokens += 1;
        }
        Ok(())
    }

    /// Returns the results as one line.
    pub fn line(&self) -> String {
        let id = |id: Option<u32>| id.map_or("none".to_owned(), |id| id.to_string());
        let mut line = format!(
            "certificate: {} prompts {}, BOS {}, EOS {}, logits within {:.1e}, {} greedy tokens are those of the trained weights",
            self.probes,
            if self.template { "of the chat template" } else { "without a chat template" },
            id(self.ends[0]),
            id(self.ends[1]),
            self.logits,
            self.tokens
        );
        if self.tensors > 0 {
            line +=
                &format!("; {} tensors have the bytes of the trained weights in their types", self.tensors);
        }
        line
    }
}

/// Compares an export with the trained weights in the run, checkpoint or adapter `trained`.
///
/// # Errors
/// `Format` that names the first difference; errors of the files and of the device.
pub fn certify(trained: &Path, exported: &Exported, device: &Device) -> Result<Certificate> {
    let (path, weights, adapter) = match exported {
        Exported::Model { path, exact } => (path, exact.as_ref().unwrap_or(path), None),
        // A folder for PEFT names its base model; a GGUF adapter does not.
        Exported::Adapter { path, base } => (path, if path.is_file() { base } else { path }, Some(path)),
    };
    let differs =
        |what: String| Error::format(format!("{} is not the trained model: {what}", path.display()));
    // A GGUF adapter does not contain texts; those of its base model apply.
    let texts_of = match exported {
        Exported::Adapter { path, base } if path.is_file() => base,
        _ => path,
    };
    let [ours, theirs] = [trained, texts_of].map(TextParts::open);
    let (ours, theirs) = (ours?, theirs?);
    let prompts = compared_texts(&ours, &theirs).map_err(differs)?;
    let mut out = Certificate {
        probes: prompts.len(),
        template: ours.template().is_some(),
        ends: [ours.tokenizer.bos(), ours.tokenizer.eos()],
        ..Certificate::default()
    };
    if let Exported::Model { path, exact: Some(_) } = exported {
        out.tensors = compared_tensors(&Source::open(trained)?, &Source::open(path)?)?.map_err(differs)?;
    }
    let open = |model: &Path, adapter: Option<&PathBuf>| {
        let options =
            Options { dtype: Some(DType::F32), activations: Some(Activations::Float), ..Options::default() };
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(1) + CONTINUED;
        let context = Some(longest.min(Source::open(model)?.config.context));
        let adapters: Vec<(PathBuf, f32)> = adapter.map(|path| (path.clone(), 1.0)).into_iter().collect();
        LoadedModel::open_adapted(
            model,
            &adapters,
            std::slice::from_ref(device),
            Options { context, ..options },
            &mut |_| Ok(()),
        )
    };
    // One model at a time: two may not fit.
    let ours = continued(&open(trained, None)?, &prompts, None)?;
    let path_tokens: Vec<Vec<u32>> =
        ours.iter().map(|steps| steps.iter().map(|step| step.best).collect()).collect();
    let theirs =
        continued(&open(weights, adapter.filter(|path| path.is_file()))?, &prompts, Some(&path_tokens))?;
    for (probe, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        out.compare(probe, ours, theirs).map_err(differs)?;
    }
    Ok(out)
}

/// Compares tokenizers and templates; returns the tokens of the prompts.
fn compared_texts(ours: &TextParts, theirs: &TextParts) -> std::result::Result<Vec<Vec<u32>>, String> {
    let name = |texts: &TextParts, id: Option<u32>| {
        let text = id.and_then(|id| {
            texts.tokenizer.piece(id).ok().map(|piece| format!("{id} {:?}", String::from_utf8_lossy(piece)))
        });
        text.unwrap_or_else(|| "none".into())
    };
    for (what, id) in [("BOS", Tokenizer::bos as fn(&Tokenizer) -> Option<u32>), ("EOS", Tokenizer::eos)] {
        let (own, other) = (id(&ours.tokenizer), id(&theirs.tokenizer));
        if own != other {
            return Err(format!("{what} is {}, expected {}", name(theirs, other), name(ours, own)));
        }
    }
    let (own, other) = (ours.tokenizer.stops(), theirs.tokenizer.stops());
    if let Some(id) = own.iter().find(|id| !other.contains(id)) {
        return Err(format!("token {} does not end an answer", name(ours, Some(*id))));
    }
    if let Some(id) = other.iter().find(|id| !own.contains(id)) {
        return Err(format!("token {} ends an answer, but not in training", name(theirs, Some(*id))));
    }
    if let (Some(_), None) = (ours.template(), theirs.template()) {
        return Err("the chat template is lost".into());
    }
    let mut prompts = Vec::with_capacity(PROBES);
    for probe in 0..PROBES {
        let [(own, ids), (other, other_ids)] = [ours, theirs].map(|texts| texts.prompt(probe));
        if own != other {
            return Err(format!("probe {probe}: the text of the prompt is {other:?}, expected {own:?}"));
        }
        if ids != other_ids {
            let at = ids.iter().zip(&other_ids).take_while(|(a, b)| a == b).count();
            return Err(format!(
                "probe {probe}: token {at} of the prompt is {}, expected {}",
                name(theirs, other_ids.get(at).copied()),
                name(ours, ids.get(at).copied())
            ));
        }
        prompts.push(ids);
    }
    Ok(prompts)
}

impl TextParts {
    fn template(&self) -> Option<&crate::template::Template> {
        self.templates.get(None, false).ok()
    }

    /// Returns the text and the tokens of a probe.
    fn prompt(&self, probe: usize) -> (String, Vec<u32>) {
        let text = TEXTS[probe % TEXTS.len()];
        let messages = match probe / TEXTS.len() {
            0 => vec![json!({ "role": "user", "content": text })],
            1 => vec![
                json!({ "role": "system", "content": "Answer briefly." }),
                json!({ "role": "user", "content": text }),
            ],
            2 => vec![
                json!({ "role": "user", "content": "Hi" }),
                json!({ "role": "assistant", "content": "Hello. How can I help?" }),
                json!({ "role": "user", "content": text }),
            ],
            _ => vec![
                json!({ "role": "user", "content": format!("{text}\n\n{}", TEXTS[(probe + 5) % TEXTS.len()]) }),
            ],
        };
        let (text, mut ids) = match self.rendered(&messages) {
            Some(Ok(found)) => found,
            // Some templates refuse a role.
            Some(Err(e)) => (format!("refused: {}", e.message()), self.plain(text)),
            None => (
                text.to_owned(),
                self.plain(&format!("{} {text}", ["", "So:", "And then,", "\n"][probe / TEXTS.len() % 4])),
            ),
        };
        ids.truncate(MOST);
        if ids.is_empty() {
            ids.push(self.tokenizer.bos().or(self.tokenizer.eos()).unwrap_or(0));
        }
        (text, ids)
    }

    fn plain(&self, text: &str) -> Vec<u32> {
        // A tokenizer of characters does not have all of them.
        let known = |c: &char| self.tokenizer.encode(&c.to_string(), Specials::Plain).is_ok();
        let text: String = text.chars().filter(known).collect();
        self.tokenizer.encode_prompt(&text, Specials::Plain).unwrap_or_default()
    }

    fn rendered(&self, messages: &[Json]) -> Option<Result<(String, Vec<u32>)>> {
        let template = self.template()?;
        let talk = Talk { messages, ..Talk::default() };
        Some(
            Prompts::new(&self.tokenizer, self.begins)
                .and_then(|prompts| prompts.render(&self.tokenizer, template, talk)),
        )
    }
}

/// Logits of a step.
struct Step {
    logits: Vec<f32>,
    /// The token with the largest logit.
    best: u32,
    /// Its distance to the second, relative to the largest logit if that exceeds 1.
    lead: f32,
}

impl Step {
    fn of(logits: Vec<f32>) -> Self {
        let (mut best, mut first, mut second) = (0, f32::MIN, f32::MIN);
        for (id, logit) in logits.iter().enumerate() {
            if *logit > first {
                (best, second, first) = (id, first, *logit);
            } else if *logit > second {
                second = *logit;
            }
        }
        let lead = (first - second) / scale(&logits);
        Self { logits, best: best as u32, lead }
    }

    /// Returns the largest difference, relative to the largest logit if that exceeds 1.
    fn off(&self, other: &Self) -> f32 {
        if self.logits.len() != other.logits.len() {
            return f32::INFINITY;
        }
        let differences = self.logits.iter().zip(&other.logits).map(|(a, b)| (a - b).abs());
        // `f32::max` would skip NaN.
        differences.fold(0.0, |most: f32, off| if off > most || off.is_nan() { off } else { most })
            / scale(&self.logits)
    }
}

fn scale(logits: &[f32]) -> f32 {
    logits.iter().fold(1.0, |most, logit| most.max(logit.abs()))
}

/// Continues prompts with the best tokens, or with given ones.
fn continued(
    model: &LoadedModel,
    prompts: &[Vec<u32>],
    given: Option<&[Vec<u32>]>,
) -> Result<Vec<Vec<Step>>> {
    let mut text = model.decoder().continuation()?;
    let mut out = Vec::with_capacity(prompts.len());
    for (probe, prompt) in prompts.iter().enumerate() {
        // If the context is small, the last tokens remain.
        let mut ids =
            prompt[prompt.len().saturating_sub(model.context().saturating_sub(CONTINUED).max(1))..].to_vec();
        let mut steps: Vec<Step> = Vec::with_capacity(CONTINUED);
        for at in 0..CONTINUED.min(model.context().saturating_sub(ids.len()).max(1)) {
            let step = Step::of(text.logits_after(&ids)?);
            ids.push(given.and_then(|given| given[probe].get(at).copied()).unwrap_or(step.best));
            steps.push(step);
        }
        out.push(steps);
    }
    Ok(out)
}

/// Compares the tensors of a file with the trained ones in its types; returns their number, or the first difference.
fn compared_tensors(ours: &Source, theirs: &Source) -> Result<std::result::Result<usize, String>> {
    for tensor in &ours.placed {
        let Some(found) = theirs.placed.iter().find(|found| found.name == tensor.name) else {
            return Ok(Err(format!("the tensor {} is missing", tensor.name)));
        };
        if found.dims != tensor.dims {
            return Ok(Err(format!(
                "{} has shape {:?}, expected {:?}",
                tensor.name, found.dims, tensor.dims
            )));
        }
        if let Some(element) = differing(ours, tensor, theirs, found)? {
            return Ok(Err(format!("{} differs from the trained weights at element {element}", tensor.name)));
        }
    }
    match theirs.placed.iter().find(|found| ours.placed.iter().all(|tensor| tensor.name != found.name)) {
        Some(more) => Ok(Err(format!("the tensor {} is not of the trained model", more.name))),
        None => Ok(Ok(ours.placed.len())),
    }
}

/// Returns the first element of a tensor that is not the trained one in the tensor's type.
fn differing(ours: &Source, tensor: &Placed, theirs: &Source, found: &Placed) -> Result<Option<usize>> {
    let count: usize = tensor.dims.iter().product();
    let stored = theirs.read(found)?;
    let theirs = stored.floats(count)?;
    if tensor.change == Change::PlusOne {
        // A folder rounds the weight without the addition of one.
        let ours = ours.read(tensor)?.floats(count)?;
        let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 0.004 * (a - 1.0).abs() + 1e-6;
        return Ok(ours.iter().zip(&theirs).position(|pair| !close(pair)));
    }
    let expected = stored_as(ours, tensor, stored.format, None)?;
    if expected == *stored.bytes {
        return Ok(None);
    }
    let expected = stored.format.dequantised(&expected, count)?;
    Ok(Some(expected.iter().zip(&theirs).position(|(a, b)| a != b).unwrap_or(0)))
}

#[cfg(test)]
mod tests;
