//! `netcl export`: writes a trained model or adapter for other programs, reads it back, and compares it with the trained weights.

use crate::context::Context;
use crate::out;
use netcl::device::check_writable;
use netcl::llm::certificate::{Certificate, Exported, certify};
use netcl::llm::model::adapter::Adapter;
use netcl::llm::model::{Mix, OutputFormat, Source, WriteOptions, convert, write_adapter};
use netcl::model::decoder::adapter_base;
use netcl::prelude::*;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tempfile::TempDir;

/// Write a trained model or adapter for other programs, and compare what was written with the trained weights
///
/// Without --merge an adapter stays one: OUT becomes a GGUF adapter for llama.cpp if it ends in .gguf, otherwise a folder for PEFT. With --merge it is
/// added to its base model: OUT becomes a GGUF file or a Hugging Face folder. Then the files are read back. Texts, tokens, logits and greedy answers of
/// 64 prompts must be those of the trained weights. The first difference is an error, and OUT is removed.
#[derive(clap::Args)]
pub struct Args {
    /// Run folder, checkpoint or PEFT adapter
    #[arg(value_name = "RUN|ADAPTER")]
    input: PathBuf,
    /// A file that ends in .gguf, or a folder
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// Add the adapter to its base model
    #[arg(long)]
    merge: bool,
    /// Type of merged weights: f32, f16, bf16, q8_0, q4_k_m, …; an unknown type lists all [default: f32]
    #[arg(long, short, value_name = "TYPE", value_parser = mix)]
    r#type: Option<&'static Mix>,
    /// Skip the comparison with the trained weights
    #[arg(long)]
    no_check: bool,
    /// Overwrite OUT
    #[arg(long)]
    force: bool,
    /// Device of the comparison, as in `train`
    #[arg(long, default_value = "auto")]
    device: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn mix(name: &str) -> std::result::Result<&'static Mix, String> {
    Mix::named(name).map_err(|e| e.message().to_owned())
}

/// Form of the output.
#[derive(Clone, Copy, Debug)]
enum Form {
    Merged(OutputFormat, &'static Mix),
    PeftAdapter,
    GgufAdapter,
}

impl Form {
    fn name(self) -> &'static str {
        match self {
            Self::Merged(OutputFormat::Gguf, _) => "model, GGUF",
            Self::Merged(OutputFormat::Folder, _) => "model, Hugging Face folder",
            Self::PeftAdapter => "adapter, PEFT",
            Self::GgufAdapter => "adapter, GGUF",
        }
    }
}

pub fn run(args: &Args, context: &Context) -> Result<()> {
    let adapter = adapter_base(&args.input)?;
    let form = form(args, adapter.is_some())?;
    free(args, form)?;
    let began = Instant::now();
    context.polite();
    let new = !args.output.exists();
    let certificate = written(args, form, adapter.as_ref(), context).inspect_err(|_| {
        // Files that were there before stay, so that --force never removes a folder of other things.
        if new {
            let _ = if args.output.is_dir() {
                std::fs::remove_dir_all(&args.output)
            } else {
                std::fs::remove_file(&args.output)
            };
        }
    })?;
    let seconds = began.elapsed().as_secs_f64();
    if args.json {
        let certificate = certificate.map(|c| {
            json!({
                "probes": c.probes, "template": c.template, "bos": c.ends[0], "eos": c.ends[1], "logits_within": c.logits,
                "greedy_tokens": c.tokens, "tensors": c.tensors,
            })
        });
        return out::json(&json!({
            "out": args.output, "form": form.name(), "certificate": certificate, "seconds": seconds,
        }));
    }
    let checked =
        certificate.map_or_else(|| "not compared with the trained weights".to_owned(), |c| c.line());
    out::result(&format!("{} ({}): {checked}", args.output.display(), form.name()))
}

/// Returns the form that OUT and the flags name.
fn form(args: &Args, adapter: bool) -> Result<Form> {
    let gguf = args.output.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    if !adapter && args.input.is_file() {
        return Err(Error::format(format!(
            "{} is a file, expected a run folder or an adapter of PEFT; netcl quantize IN OUT converts models",
            args.input.display()
        )));
    }
    // Weights that were trained as a whole are a model already.
    if adapter && !args.merge {
        if let Some(mix) = args.r#type {
            return Err(Error::format(format!(
                "--type {}: an adapter is written in f32; --merge writes the whole model in this type",
                mix.name
            )));
        }
        return Ok(if gguf { Form::GgufAdapter } else { Form::PeftAdapter });
    }
    let mix = args.r#type.map_or_else(|| Mix::named("f32"), Ok)?;
    if !gguf && !mix.base.is_plain() {
        return Err(Error::format(format!(
            "{} is not a .gguf file, and safetensors cannot store {}: end OUT in .gguf, or use --type f32, f16 or bf16 for a folder",
            args.output.display(),
            mix.name
        )));
    }
    Ok(Form::Merged(if gguf { OutputFormat::Gguf } else { OutputFormat::Folder }, mix))
}

/// Checks that OUT can be written.
fn free(args: &Args, form: Form) -> Result<()> {
    let path = &args.output;
    let folder = matches!(form, Form::PeftAdapter | Form::Merged(OutputFormat::Folder, _));
    if folder == path.is_file() && path.exists() {
        let expected = if folder { "a folder" } else { "a file" };
        return Err(Error::format(format!(
            "{} exists and is not {expected}; name another place",
            path.display()
        )));
    }
    let full = match folder {
        true => std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()),
        false => path.exists(),
    };
    if full && !args.force {
        return Err(Error::format(format!("{} exists; --force overwrites it", path.display())));
    }
    if folder { Ok(()) } else { check_writable(path) }
}

/// Writes the files and compares them.
fn written(
    args: &Args,
    form: Form,
    adapter: Option<&(PathBuf, PathBuf)>,
    context: &Context,
) -> Result<Option<Certificate>> {
    let (input, output) = (&args.input, &args.output);
    let write = |path: &Path, target: OutputFormat, mix: &'static Mix| {
        let options = WriteOptions { mix, importance: None };
        convert(&Source::open(input)?, path, target, &options, &mut |_| match context.interrupted() {
            true => Err(Error::new(ErrorKind::Io, "stopped by a signal")),
            false => Ok(()),
        })
    };
    let mut exact: Option<TempDir> = None;
    let exported = match (form, adapter) {
        (Form::Merged(target, mix), _) => {
            write(output, target, mix)?;
            let plain = Mix::named("f32")?;
            if mix.name != plain.name && !args.no_check {
                exact = Some(beside(output)?);
            }
            let exact = exact.as_ref().map(|folder| {
                folder.path().join(if target == OutputFormat::Gguf { "exact.gguf" } else { "exact" })
            });
            exact.as_ref().map_or(Ok(()), |path| write(path, target, plain))?;
            Exported::Model { path: output.clone(), exact }
        }
        (Form::PeftAdapter, Some((base, folder))) => {
            write_adapter(folder, output)?;
            Exported::Adapter { path: output.clone(), base: base.clone() }
        }
        (Form::GgufAdapter, Some((base, folder))) => {
            let name = base.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            Adapter::open(folder)?.write_gguf(&Source::open(base)?.config, &name, output)?;
            Exported::Adapter { path: output.clone(), base: base.clone() }
        }
        (_, None) => return Err(Error::internal("an adapter without a base model")),
    };
    if args.no_check {
        return Ok(None);
    }
    let device = context.open_device(&args.device)?;
    certify(input, &exported, &device).map(Some)
}

/// Returns a temporary folder on the disk of OUT, for an f32 copy of the weights.
fn beside(output: &Path) -> Result<TempDir> {
    let parent = output.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    TempDir::new_in(parent).map_err(|e| Error::io("creating a folder in", parent, &e))
}
