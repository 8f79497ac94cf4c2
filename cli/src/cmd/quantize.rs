//! `netcl quantize`: a model in another layout and type.

use crate::context::Context;
use crate::loading::LoraArgs;
use crate::out;
use indicatif::{ProgressBar, ProgressDrawTarget};
use netcl::device::{check_writable, human};
use netcl::llm::model::adapter::open_all;
use netcl::llm::model::{Importance, Mix, Options, Progress, Source, Target, convert, planned};
use netcl::prelude::*;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Convert a model to GGUF or back, in another type of weights
#[derive(clap::Args)]
pub struct Args {
    /// A .gguf file, a folder in the Hugging Face layout, or a run folder
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// A file that ends in .gguf, or a folder for safetensors in the Hugging Face layout
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// Type of the weights: f32, f16, bf16, q8_0, q4_0, q4_k_m, q5_k_m, q6_k, iq4_nl, …; a wrong one lists all
    #[arg(long, short, value_name = "TYPE", value_parser = mix)]
    r#type: &'static Mix,
    /// How much each column matters, as llama-imatrix writes it
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    #[command(flatten)]
    lora: LoraArgs,
    /// Quantise what is quantised already: its error is added to the new one
    #[arg(long)]
    requantize: bool,
    /// Replace what is there at OUT
    #[arg(long)]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn mix(name: &str) -> std::result::Result<&'static Mix, String> {
    Mix::named(name).map_err(|e| e.message().to_owned())
}

/// Between lines where there is no terminal.
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
    let options = Options { mix: args.r#type, importance: importance.as_ref() };
    let formats = planned(&source, target, &options);
    let counts = source.placed.iter().map(|tensor| tensor.dims.iter().product::<usize>());
    let after: u64 = formats.iter().zip(counts).map(|(f, n)| f.size(n).unwrap_or(0) as u64).sum();
    let before = source.bytes()?;
    out::note(&format!("{} of weights become {} of {}", human(before), human(after), args.r#type.name));
    let other =
        formats.iter().filter(|f| ["F16", "Q4_0", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL"].contains(&f.name));
    let fallback = other.filter(|f| ***f != *args.r#type.base).count();
    if args.r#type.base.block == 256 && fallback > 0 {
        out::note(&format!(
            "{fallback} tensors have rows that are no multiple of 256 and take types of smaller blocks"
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
    out::note(&format!("{bits:.2} bits a parameter, {:.1} s", bar.began.elapsed().as_secs_f64()));
    out::result(&args.output.display().to_string())
}

/// What OUT asks for, where it can be written.
fn target(args: &Args) -> Result<Target> {
    let (path, plain) = (&args.output, args.r#type.base.is_plain());
    let is_file = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    let same =
        |a: &Path, b: &Path| a.canonicalize().ok().zip(b.canonicalize().ok()).is_some_and(|(a, b)| a == b);
    if same(&args.input, path) {
        return Err(Error::format(format!("{} is IN and OUT: name another file", path.display())));
    }
    if is_file {
        if path.exists() && !args.force {
            return Err(Error::format(format!("{} is there already; --force replaces it", path.display())));
        }
        check_writable(path)?;
        return Ok(Target::Gguf);
    }
    if !plain {
        return Err(Error::format(format!(
            "{} is no .gguf file, and safetensors hold no {}: end OUT in .gguf, or take --type f32, f16 or bf16 for a folder",
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
    Ok(Target::Folder)
}

/// Refuses to quantise twice unasked.
fn check_types(args: &Args, source: &Source) -> Result<()> {
    let wanted = args.r#type.base;
    for tensor in &source.placed {
        let found = source.format(tensor)?;
        if !found.is_plain() && !wanted.is_plain() && found != wanted && !args.requantize {
            return Err(Error::format(format!(
                "{} is quantised already ({} has {found}): quantising it again adds the error of both. Begin with the original model, or \
                 say --requantize",
                args.input.display(),
                tensor.name
            )));
        }
    }
    Ok(())
}

/// What adapters change is quantised anew.
fn check_merged(args: &Args, source: &Source) -> Result<()> {
    if args.requantize || args.r#type.base.is_plain() {
        return Ok(());
    }
    for tensor in &source.placed {
        if source.is_quantised(tensor)? && source.format(tensor)?.is_plain() {
            return Err(Error::format(format!(
                "{} is quantised already, and an adapter changes {}: quantising it again adds the error of both. Begin with the original model, \
                 or say --requantize",
                args.input.display(),
                tensor.name
            )));
        }
    }
    Ok(())
}

/// An importance matrix that names none of the tensors is another model's.
fn check_importance(source: &Source, importance: &Importance, path: &Path) -> Result<()> {
    let known = source.placed.iter().filter(|t| importance.weights.contains_key(&t.name)).count();
    let matrices = source.placed.iter().filter(|t| t.dims.len() > 1).count();
    if known == 0 {
        return Err(Error::format(format!("{}: it names no tensor of this model", path.display())));
    }
    out::note(&format!("importance of {known} of {matrices} matrices"));
    Ok(())
}

/// How far it is: a bar on a terminal, a line now and then elsewhere.
struct Bar<'a> {
    context: &'a Context,
    bar: Option<ProgressBar>,
    began: Instant,
    printed: Instant,
}

impl Bar<'_> {
    fn show(&mut self, p: &Progress<'_>) -> Result<()> {
        if self.context.interrupted() {
            return Err(Error::new(ErrorKind::Io, "stopped by a signal; OUT is as it was"));
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
