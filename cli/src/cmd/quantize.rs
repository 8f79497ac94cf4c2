//! `netcl quantize`: converts a model to another format and type.

use crate::context::Context;
use crate::loading::LoraArgs;
use crate::out;
use indicatif::{ProgressBar, ProgressDrawTarget};
use netcl::device::{check_writable, human};
use netcl::llm::model::adapter::open_all;
use netcl::llm::model::{Importance, Mix, OutputFormat, Progress, Source, WriteOptions, convert, planned};
use netcl::prelude::*;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Convert a model to or from GGUF, with another type of weights
#[derive(clap::Args)]
pub struct Args {
    /// A .gguf file, Hugging Face folder, or run folder
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// A file that ends in .gguf, or a folder for safetensors in the Hugging Face format
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// Type of the weights: f32, f16, bf16, q8_0, q4_k_m, q5_k_m, q6_k, iq4_nl, …; an unknown type lists all
    #[arg(long, short, value_name = "TYPE", value_parser = mix)]
    r#type: &'static Mix,
    /// Importance matrix of llama-imatrix: the weight of each column
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    #[command(flatten)]
    lora: LoraArgs,
    /// Quantize an already quantized model, which adds the new error to the old one
    #[arg(long)]
    requantize: bool,
    /// Overwrite OUT
    #[arg(long)]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn mix(name: &str) -> std::result::Result<&'static Mix, String> {
    Mix::named(name).map_err(|e| e.message().to_owned())
}

/// Interval between lines if stderr is not a terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

pub fn run(args: &Args, context: &Context) -> Result<()> {
    let target = target(args)?;
    let mut source = Source::open(&args.input)?;
    check_types(args, &source)?;
    if !args.lora.lora.is_empty() {
        source.adapt(open_all(&source.config, &args.lora.lora)?)?;
        check_merged(args, &source)?;
    }
    let importance = args.imatrix.as_deref().map(Importance::open).transpose()?;
    if let Some(all) = &importance {
        check_importance(&source, all, args.imatrix.as_deref().unwrap_or(Path::new("")))?;
    }
    let options = WriteOptions { mix: args.r#type, importance: importance.as_ref() };
    let formats = planned(&source, target, &options);
    let counts = source.placed.iter().map(|tensor| tensor.dims.iter().product::<usize>());
    let after: u64 = formats.iter().zip(counts).map(|(f, n)| f.size(n).unwrap_or(0) as u64).sum();
    let before = source.bytes()?;
    out::note(&format!(
        "converting {} of weights to {} of {}",
        human(before),
        human(after),
        args.r#type.name
    ));
    let other =
        formats.iter().filter(|f| ["F16", "Q4_0", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL"].contains(&f.name));
    let fallback = other.filter(|f| ***f != *args.r#type.base).count();
    if args.r#type.base.block == 256 && fallback > 0 {
        out::note(&format!(
            "{fallback} tensors have rows that are not a multiple of 256 and use types of smaller blocks"
        ));
    }
    context.polite();
    let mut bar = Bar { context, bar: None, began: Instant::now(), printed: Instant::now() };
    let done = convert(&source, &args.output, target, &options, &mut |p| bar.show(&p));
    bar.clear();
    done?;
    let bits = after as f64 * 8.0 / source.config.parameters().max(1) as f64;
    if args.json {
        return out::json(&json!({
            "out": args.output, "type": args.r#type.name, "bytes_before": before, "bytes_after": after,
            "bits_per_parameter": bits, "tensors": formats.len(), "seconds": bar.began.elapsed().as_secs_f64(),
        }));
    }
    out::note(&format!("{bits:.2} bits per parameter, {:.1} s", bar.began.elapsed().as_secs_f64()));
    out::result(&args.output.display().to_string())
}

/// Returns the target that OUT names, if it can be written.
fn target(args: &Args) -> Result<OutputFormat> {
    let (path, plain) = (&args.output, args.r#type.base.is_plain());
    let is_file = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    let same =
        |a: &Path, b: &Path| a.canonicalize().ok().zip(b.canonicalize().ok()).is_some_and(|(a, b)| a == b);
    if same(&args.input, path) {
        return Err(Error::format(format!("{} is both IN and OUT; name another file", path.display())));
    }
    if is_file {
        if path.exists() && !args.force {
            return Err(Error::format(format!("{} exists; --force overwrites it", path.display())));
        }
        check_writable(path)?;
        return Ok(OutputFormat::Gguf);
    }
    if !plain {
        return Err(Error::format(format!(
            "{} is not a .gguf file, and safetensors cannot store {}: end OUT in .gguf, or use --type f32, f16 or bf16 for a folder",
            path.display(),
            args.r#type.name
        )));
    }
    if path.is_file() {
        return Err(Error::format(format!(
            "{} is a file, expected a folder or a name that ends in .gguf",
            path.display()
        )));
    }
    let full = std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
    if full && !args.force {
        return Err(Error::format(format!("{} is not empty; --force writes into it", path.display())));
    }
    Ok(OutputFormat::Folder)
}

/// Refuses to quantize a quantized model without `--requantize`.
fn check_types(args: &Args, source: &Source) -> Result<()> {
    let wanted = args.r#type.base;
    for tensor in &source.placed {
        let found = source.format(tensor)?;
        if !found.is_plain() && !wanted.is_plain() && found != wanted && !args.requantize {
            return Err(Error::format(format!(
                "{} is quantized already ({} has {found}): quantizing it again adds both errors. Start from the original model, or pass --requantize",
                args.input.display(),
                tensor.name
            )));
        }
    }
    Ok(())
}

/// Refuses to quantize tensors again that adapters change, without `--requantize`.
fn check_merged(args: &Args, source: &Source) -> Result<()> {
    if args.requantize || args.r#type.base.is_plain() {
        return Ok(());
    }
    for tensor in &source.placed {
        if source.is_quantised(tensor)? && source.format(tensor)?.is_plain() {
            return Err(Error::format(format!(
                "{} is quantized already, and an adapter changes {}: quantizing it again adds both errors. Start from the original model, or pass \
                 --requantize",
                args.input.display(),
                tensor.name
            )));
        }
    }
    Ok(())
}

/// Refuses an importance matrix that names no tensor of this model, because it belongs to another model.
fn check_importance(source: &Source, importance: &Importance, path: &Path) -> Result<()> {
    let known = source.placed.iter().filter(|t| importance.weights.contains_key(&t.name)).count();
    let matrices = source.placed.iter().filter(|t| t.dims.len() > 1).count();
    if known == 0 {
        return Err(Error::format(format!("{}: it names no tensor of this model", path.display())));
    }
    out::note(&format!("importance of {known} of {matrices} matrices"));
    Ok(())
}

/// Progress: a bar on a terminal, occasional lines elsewhere.
struct Bar<'a> {
    context: &'a Context,
    bar: Option<ProgressBar>,
    began: Instant,
    printed: Instant,
}

impl Bar<'_> {
    fn show(&mut self, p: &Progress<'_>) -> Result<()> {
        if self.context.interrupted() {
            return Err(Error::new(ErrorKind::Io, "stopped by a signal; OUT is unchanged"));
        }
        let [done, all] = p.tensors;
        if self.context.live() {
            let bar = self.bar.get_or_insert_with(|| {
                let bar =
                    ProgressBar::with_draw_target(Some(p.elements[1]), ProgressDrawTarget::stderr_with_hz(8));
                bar.set_style(out::style("{bar:24} {wide_msg}  ETA {eta}"));
                bar
            });
            bar.set_position(p.elements[0]);
            bar.set_message(format!("tensor {} of {all}: {}", (done + 1).min(all), p.name));
        } else if self.printed.elapsed() >= PLAIN_EVERY {
            self.printed = Instant::now();
            out::note(&format!("tensor {} of {all}: {}", (done + 1).min(all), p.name));
        }
        Ok(())
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl::llm::model::MIXES;

    #[test]
    fn the_help_names_types_that_are_there() {
        for name in ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_k_m", "q5_k_m", "q6_k", "iq4_nl"] {
            assert!(MIXES.iter().any(|mix| mix.name == name), "{name}");
        }
        assert!(mix("q4").unwrap_err().contains("q4_k_m"));
    }
}
