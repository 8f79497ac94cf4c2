//! Sampling settings under llama.cpp's names.

use netcl::llm::Tokenizer;
use netcl::llm::grammar::Grammars;
use netcl::llm::sampler::{Mirostat, Sampler, Sampling, Step};
use netcl::prelude::{Error, Result};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

/// The constraint that generated text must follow.
enum Following {
    Nothing,
    Lark(String),
    Regex(String),
    Schema(serde_json::Value),
}

/// Requested settings, to be applied over the settings from the model's files.
pub struct RequestedSampling {
    changes: Vec<Change>,
    bound: Following,
}

type Change = Box<dyn FnOnce(&mut Sampling) + Send>;

/// Supported names, for the error about an unknown name.
const NAMES: [&str; 30] = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "xtc_probability",
    "xtc_threshold",
    "dynatemp_range",
    "dynatemp_exponent",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "min_keep",
    "logit_bias",
    "samplers",
    "seed",
    "greedy",
    "grammar",
    "regex",
    "json_schema",
];

fn set<T>(value: T, to: fn(&mut Sampling) -> &mut T) -> Change
where
    T: Send + 'static,
{
    Box::new(move |sampling| *to(sampling) = value)
}

/// Parses one setting. Returns `None` if the name is unknown.
fn change(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Option<Change>> {
    Ok(Some(match name {
        "temperature" | "temp" => set(value.extract()?, |s| &mut s.temperature),
        "top_k" => set(value.extract()?, |s| &mut s.top_k),
        "top_p" => set(value.extract()?, |s| &mut s.top_p),
        "min_p" => set(value.extract()?, |s| &mut s.min_p),
        "typical_p" | "typical" | "typ_p" => set(value.extract()?, |s| &mut s.typical_p),
        "top_n_sigma" => set(value.extract()?, |s| &mut s.top_n_sigma),
        "repeat_penalty" => set(value.extract()?, |s| &mut s.repeat_penalty),
        "repeat_last_n" => set(value.extract()?, |s| &mut s.repeat_last_n),
        "presence_penalty" => set(value.extract()?, |s| &mut s.presence_penalty),
        "frequency_penalty" => set(value.extract()?, |s| &mut s.frequency_penalty),
        "dry_multiplier" => set(value.extract()?, |s| &mut s.dry.multiplier),
        "dry_base" => set(value.extract()?, |s| &mut s.dry.base),
        "dry_allowed_length" => set(value.extract()?, |s| &mut s.dry.allowed_length),
        "dry_penalty_last_n" => set(value.extract()?, |s| &mut s.dry.last_n),
        "dry_sequence_breakers" => set(value.extract()?, |s| &mut s.dry.breakers),
        "xtc_probability" => set(value.extract()?, |s| &mut s.xtc_probability),
        "xtc_threshold" => set(value.extract()?, |s| &mut s.xtc_threshold),
        "dynatemp_range" => set(value.extract()?, |s| &mut s.dynatemp_range),
        "dynatemp_exponent" | "dynatemp_exp" => set(value.extract()?, |s| &mut s.dynatemp_exponent),
        "mirostat" => set(mirostat(value.extract()?)?, |s| &mut s.mirostat),
        "mirostat_tau" => set(value.extract()?, |s| &mut s.mirostat_tau),
        "mirostat_eta" => set(value.extract()?, |s| &mut s.mirostat_eta),
        "min_keep" => set(value.extract()?, |s| &mut s.min_keep),
        "seed" => set(value.extract()?, |s| &mut s.seed),
        "logit_bias" => set(biases(value)?, |s| &mut s.logit_bias),
        "samplers" => set(chain(value)?, |s| &mut s.chain),
        "greedy" => match value.extract::<bool>()? {
            true => Box::new(|s| {
                let greedy = Sampling::greedy();
                (s.chain, s.temperature) = (greedy.chain, greedy.temperature);
            }),
            false => Box::new(|_| ()),
        },
        _ => return Ok(None),
    }))
}

fn mirostat(version: u8) -> PyResult<Mirostat> {
    let all = [Mirostat::Off, Mirostat::One, Mirostat::Two];
    let found = all.get(usize::from(version)).copied();
    found.ok_or_else(|| PyValueError::new_err(format!("mirostat is {version}; it must be 0, 1 or 2")))
}

/// Parses logit biases: a dictionary or pairs of token and bias.
fn biases(value: &Bound<'_, PyAny>) -> PyResult<Vec<(u32, f32)>> {
    match value.cast::<PyDict>() {
        Ok(dict) => dict.items().extract(),
        Err(_) => value.extract(),
    }
}

/// Parses names given as a list or as a string with semicolons.
fn chain(value: &Bound<'_, PyAny>) -> PyResult<Vec<Step>> {
    let text = match value.cast::<PyString>() {
        Ok(text) => text.to_string(),
        Err(_) => value.extract::<Vec<String>>()?.join(";"),
    };
    Step::chain(&text).map_err(|e| PyValueError::new_err(e.message().to_owned()))
}

/// Parses a schema: JSON text, or an object that `json.dumps` accepts.
fn schema(value: &Bound<'_, PyAny>) -> PyResult<serde_json::Value> {
    let text = match value.cast::<PyString>() {
        Ok(text) => text.to_string(),
        Err(_) => value.py().import("json")?.call_method1("dumps", (value,))?.extract()?,
    };
    serde_json::from_str(&text)
        .map_err(|e| PyTypeError::new_err(format!("the JSON schema is not valid JSON: {e}")))
}

impl RequestedSampling {
    /// Parses keyword arguments. `None` means that an argument was not given.
    pub fn new(given: &Bound<'_, PyDict>) -> PyResult<Self> {
        let mut asked = Self { changes: Vec::new(), bound: Following::Nothing };
        for (name, value) in given {
            let name: String = name.extract()?;
            if value.is_none() {
                continue;
            }
            let bound = match name.as_str() {
                "grammar" => Following::Lark(value.extract()?),
                "regex" => Following::Regex(value.extract()?),
                "json_schema" => Following::Schema(schema(&value)?),
                _ => {
                    let found = change(&name, &value)
                        .map_err(|e| PyTypeError::new_err(format!("{name}: {}", e.value(value.py()))))?;
                    asked.changes.push(found.ok_or_else(|| {
                        let names = NAMES.join(", ");
                        PyTypeError::new_err(format!("no setting {name:?}; expected one of {names}"))
                    })?);
                    continue;
                }
            };
            if !matches!(asked.bound, Following::Nothing) {
                return Err(PyTypeError::new_err(
                    "grammar, regex and json_schema cannot be combined; give one of them",
                ));
            }
            asked.bound = bound;
        }
        Ok(asked)
    }

    /// Builds a sampler from `base` with these settings applied.
    pub fn sampler(self, base: &Sampling, tokenizer: &Tokenizer) -> Result<Sampler> {
        let mut sampling = Sampling { seed: 0, ..base.clone() };
        self.changes.into_iter().for_each(|change| change(&mut sampling));
        sampling.validate()?;
        let sampler = Sampler::new(sampling, tokenizer)?;
        let grammar = match self.bound {
            Following::Nothing => return Ok(sampler),
            Following::Lark(text) => Grammars::new(tokenizer)?.lark(&text),
            Following::Regex(pattern) => Grammars::new(tokenizer)?.regex(&pattern),
            Following::Schema(schema) => Grammars::new(tokenizer)?.json_schema(&schema),
        };
        grammar.map(|grammar| sampler.following(grammar))
    }
}

/// Parses stop strings: one or several.
pub fn stop_texts(stop: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<String>> {
    let Some(stop) = stop.filter(|stop| !stop.is_none()) else { return Ok(Vec::new()) };
    match stop.cast::<PyString>() {
        Ok(one) => Ok(vec![one.to_string()]),
        Err(_) => stop.extract(),
    }
}

/// Parses the name of a role.
pub fn role(name: &str) -> Result<netcl::llm::engine::Role> {
    use netcl::llm::engine::Role;
    match name {
        "system" => Ok(Role::System),
        "user" => Ok(Role::User),
        "assistant" => Ok(Role::Assistant),
        _ => Err(Error::format(format!("chat: no role {name:?}, expected system, user or assistant"))),
    }
}
