//! `netcl serve`: models over HTTP.

use crate::context::Context;
use crate::named::{named, named_by};
use crate::out;
use clap::Args as ClapArgs;
use netcl::device::parse_bytes;
use netcl::llm::engine::{CacheType, EngineOptions};
use netcl::prelude::*;
use netcl::tensor::quant::Activations;
use netcl::train::config::{DTYPES, storage_type};
use netcl_server::{Checker, ModelOptions, ModelSpec, ServeOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Serve models over HTTP with OpenAI's and Ollama's APIs, and a chat page at /
///
/// The first line on stdout is the address. After SIGTERM or SIGINT, the server finishes running answers and exits with code 0; a second signal ends
/// it at once.
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// A .gguf file, Hugging Face folder, or run folder; NAME=PATH names it for requests (repeatable)
    ///
    /// The first model is loaded at once and answers requests without a model's name. The others are loaded when a request names them.
    #[arg(short, long, value_name = "[NAME=]PATH", required = true, value_parser = model)]
    model: Vec<(String, PathBuf)>,
    /// Serve a model with a LoRA adapter as NAME: the first model, or MODEL (repeatable)
    #[arg(long, value_name = "NAME=PATH[+MODEL]", value_parser = adapter)]
    lora: Vec<Adapter>,
    /// Address to listen on; one that other machines can reach requires keys, or --no-auth
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port; 0 selects a free one
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Key that requests must send (repeatable); --api-key-file is safer
    ///
    /// Other users of this machine can read command lines.
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,
    /// File with one key per line
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Serve other machines without a key
    #[arg(long)]
    no_auth: bool,
    /// Origin whose pages may send requests, such as https://example.com; * for all (repeatable)
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<String>,
    /// Context length in tokens [default: the model's, or as much as fits]
    #[arg(short, long, visible_alias = "ctx-size", value_name = "TOKENS")]
    context: Option<usize>,
    /// Maximum number of texts that are continued at the same time
    #[arg(long, visible_alias = "np", value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=4096))]
    parallel: u16,
    /// Maximum number of waiting texts; further requests are answered with 429
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_queue: u16,
    /// Tokens of the KV cache [default: the context of each text, or as much as fits]
    #[arg(long, value_name = "TOKENS")]
    cache_tokens: Option<usize>,
    /// Storage of keys and values: that of the weights, or 8 bits with a scale per 32 elements
    #[arg(long, value_name = "TYPE", default_value = "weights", value_parser = named(&CacheType::NAMES))]
    cache_type: CacheType,
    /// Maximum bytes of models, caches and workspaces on all devices, such as 20G [default: all]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    memory: Option<u64>,
    /// Seconds that running answers have to end after a signal
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    drain: u64,
    /// Maximum bytes of a request
    #[arg(long, value_name = "BYTES", default_value = "16M", value_parser = parse_bytes)]
    max_body: u64,
    /// Storage type of unquantized weights, keys and values [default: the files']
    #[arg(long, value_parser = named_by(&DTYPES, storage_type))]
    dtype: Option<DType>,
    /// Convert quantized matrices to the type of --dtype as well
    #[arg(long)]
    dequantise: bool,
    /// Operand type of products with quantized matrices: float or int8, as in `chat`
    #[arg(long, value_parser = named(&Activations::NAMES))]
    activations: Option<Activations>,
    /// Device, or several separated by commas, as in `chat`
    #[arg(long, default_value = "auto")]
    device: String,
    #[command(flatten)]
    division: crate::loading::DivisionArgs,
    /// Time the kernels of every Nth step of the engine for /device [N without a number: 64]
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "64", value_parser = clap::value_parser!(u32).range(1..))]
    profile: Option<u32>,
    /// Format of log lines: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = ["text", "json"])]
    log_format: String,
}

/// A model with an adapter.
#[derive(Clone, Debug, PartialEq)]
struct Adapter {
    name: String,
    path: PathBuf,
    of: Option<String>,
}

/// Parses `PATH`, named after its file, or `NAME=PATH`.
fn model(text: &str) -> std::result::Result<(String, PathBuf), String> {
    if let Some((name, path)) = text.split_once('=').filter(|_| !Path::new(text).exists()) {
        return match name.is_empty() || path.is_empty() {
            true => Err(format!("expected PATH or NAME=PATH, found {text:?}")),
            false => Ok((name.to_owned(), path.into())),
        };
    }
    let path = Path::new(text);
    // "." is not a name.
    let named = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = match named.extension() {
        Some(end) if end.eq_ignore_ascii_case("gguf") => named.file_stem(),
        _ => named.file_name(),
    };
    let name = name
        .and_then(|name| name.to_str())
        .ok_or_else(|| format!("{text:?} lacks a name; write NAME=PATH"))?;
    Ok((name.to_owned(), path.to_owned()))
}

/// Parses `NAME=PATH` or `NAME=PATH+MODEL`.
fn adapter(text: &str) -> std::result::Result<Adapter, String> {
    let wrong = || format!("expected NAME=PATH or NAME=PATH+MODEL, found {text:?}");
    let (name, rest) =
        text.split_once('=').filter(|(name, rest)| !name.is_empty() && !rest.is_empty()).ok_or_else(wrong)?;
    let (path, of) = match rest.rsplit_once('+').filter(|_| !Path::new(rest).exists()) {
        Some((path, of)) => (path, Some(of.to_owned())),
        None => (rest, None),
    };
    Ok(Adapter { name: name.to_owned(), path: path.into(), of })
}

impl Args {
    /// Returns whether log lines are JSON.
    pub fn logs_json(&self) -> bool {
        self.log_format == "json"
    }

    /// Returns the keys of both flags.
    fn keys(&self) -> Result<Vec<String>> {
        let mut keys = self.api_key.clone();
        if let Some(file) = &self.api_key_file {
            let text = std::fs::read_to_string(file)
                .map_err(|e| Error::io("reading the keys of --api-key-file", file, &e))?;
            if others_read(file) {
                let file = file.display();
                tracing::warn!("other users of this machine can read the keys in {file}: chmod 600 {file}");
            }
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
            let before = keys.len();
            keys.extend(lines.map(str::to_owned));
            if keys.len() == before {
                return Err(Error::format(format!(
                    "{} contains no key; expected one per line",
                    file.display()
                )));
            }
        }
        let sent = |byte: u8| (b' '..=b'~').contains(&byte);
        if let Some(at) = keys.iter().position(|key| !key.bytes().all(sent)) {
            return Err(Error::format(format!(
                "key {} of --api-key and --api-key-file has a character that HTTP headers cannot carry; use ASCII",
                at + 1
            )));
        }
        match keys.iter().any(|key| key.trim().is_empty()) {
            true => Err(Error::format("--api-key: a key is empty")),
            false => Ok(keys),
        }
    }

    /// Returns the models: first those without adapters, then those with adapters.
    fn specs(&self) -> Result<Vec<ModelSpec>> {
        let mut specs: Vec<ModelSpec> = Vec::new();
        for (name, path) in &self.model {
            specs.push(ModelSpec { name: name.clone(), path: path.clone(), adapters: Vec::new() });
        }
        for Adapter { name, path, of } in &self.lora {
            let base = match of {
                None => self.model.first(),
                Some(of) => self.model.iter().find(|(name, _)| name == of),
            };
            let Some((_, base)) = base else {
                let of = of.as_deref().unwrap_or_default();
                return Err(Error::format(format!("--lora {name}: no --model is named {of}")));
            };
            let adapters = vec![(path.clone(), 1.0)];
            specs.push(ModelSpec { name: name.clone(), path: base.clone(), adapters });
        }
        // The files of models that are loaded later must exist now.
        let paths = specs.iter().flat_map(|spec| {
            let adapters = spec.adapters.iter().map(|(path, _)| ("--lora", path));
            [("--model", &spec.path)].into_iter().chain(adapters)
        });
        let absent = paths.into_iter().find(|(_, path)| !path.exists());
        let error = absent
            .map(|(flag, path)| Error::format(format!("{flag} {}: no such file or folder", path.display())));
        error.map_or(Ok(specs), Err)
    }
}

/// Returns whether every user of this machine can read a file.
fn others_read(file: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::metadata(file).is_ok_and(|file| file.permissions().mode() & 0o004 != 0)
    }
    #[cfg(not(unix))]
    {
        let _ = file;
        false
    }
}

/// Returns this program as a grammar checker.
fn checker() -> Result<Option<Checker>> {
    let program = std::env::current_exe().map_err(|e| Error::io("finding", Path::new("this program"), &e))?;
    Ok(Some(Checker { program, arguments: vec!["check-grammar".into()] }))
}

/// Serves until a signal arrives.
pub fn run(args: &Args, context: &Context) -> Result<()> {
    let (specs, keys) = (args.specs()?, args.keys()?);
    let options = ServeOptions {
        host: args.host.clone(),
        port: args.port,
        keys,
        open: args.no_auth,
        origins: args.cors_origin.clone(),
        drain: Duration::from_secs(args.drain),
        max_body: usize::try_from(args.max_body).unwrap_or(usize::MAX),
        ..ServeOptions::default()
    };
    let engine = EngineOptions {
        texts: usize::from(args.parallel),
        tokens: args.cache_tokens,
        cache: args.cache_type,
        ..EngineOptions::default()
    };
    let models = ModelOptions {
        devices: context.open_devices(&args.device)?,
        dtype: args.dtype,
        context: args.context,
        dequantise: args.dequantise,
        activations: args.activations,
        layers: args.division.layers.clone(),
        engine,
        queue: usize::from(args.max_queue),
        profile: args.profile.map(|every| every as usize),
        checker: checker()?,
    };
    context.answering(|| netcl_server::serve(specs, models, args.memory, options, out::result))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_called_after_their_files() {
        assert_eq!(model("a/b.gguf"), Ok(("b".into(), "a/b.gguf".into())));
        assert_eq!(model("a/Llama-3.2"), Ok(("Llama-3.2".into(), "a/Llama-3.2".into())));
        assert_eq!(model("x=a/b.gguf"), Ok(("x".into(), "a/b.gguf".into())));
        assert!(model("=a").is_err() && model("a=").is_err() && model("/").is_err());
        let found = adapter("tuned=b+x").unwrap();
        assert_eq!((found.name.as_str(), found.of.as_deref()), ("tuned", Some("x")));
        assert_eq!(adapter("tuned=a/b").unwrap().of, None);
        assert!(adapter("a").is_err() && adapter("=b").is_err());
    }
}
