//! Loads a model: a bar on a terminal, occasional lines elsewhere.

use crate::context::Context;
use crate::named::{named, named_by};
use crate::out;
use clap::Args as ClapArgs;
use indicatif::{ProgressBar, ProgressDrawTarget};
use netcl::llm::LoadedModel;
use netcl::llm::engine::{Loading, Options};
use netcl::model::decoder::{Decoder, Span};
use netcl::prelude::*;
use netcl::tensor::quant::Activations;
use netcl::train::config::{DTYPES, storage_type};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval between lines if stderr is not a terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// The model and its device.
#[derive(ClapArgs, Clone, Debug)]
pub struct ModelArgs {
    /// A .gguf file, Hugging Face folder, run folder or checkpoint of `netcl train`
    #[arg(short, long, value_name = "PATH")]
    pub model: PathBuf,
    /// Context length in tokens [default: the model's, or as much as fits]
    #[arg(short, long, value_name = "TOKENS")]
    pub ctx_size: Option<usize>,
    /// Storage type of unquantized weights, keys and values [default: the file's]
    ///
    /// Names such as bfloat16 and half are also accepted. For a quantized model the default is f16.
    #[arg(long, value_parser = named_by(&DTYPES, storage_type))]
    pub dtype: Option<DType>,
    /// Convert quantized matrices to the type of --dtype [default: kernels read them as they are]
    #[arg(long)]
    pub dequantise: bool,
    /// Operand type of products with quantized matrices: float or int8 [default: int8 on CPUs]
    ///
    /// int8 rounds activations to bytes in groups of 32, as llama.cpp does everywhere. It is several times as fast on CPUs, and logits move by about
    /// a hundredth of the largest. The default on other devices is float.
    #[arg(long, value_parser = named(&Activations::NAMES))]
    pub activations: Option<Activations>,
    /// Low-rank adapters.
    #[command(flatten)]
    pub lora: LoraArgs,
    /// Device, as in `train`, or several devices that share the layers, such as nvidia:0,pocl:0
    ///
    /// The layers of a model that does not fit on one device are divided: each device in turn gets as many as fit in its memory.
    #[arg(long, visible_alias = "gpu-id", default_value = "auto")]
    pub device: String,
    /// Division of layers.
    #[command(flatten)]
    pub division: DivisionArgs,
}

/// Division of layers.
#[derive(ClapArgs, Clone, Debug)]
pub struct DivisionArgs {
    /// Layers of each of several devices, such as 24,8 [default for the last device: the rest]
    ///
    /// 24 with --device nvidia:0,pocl:0 is like llama.cpp's --n-gpu-layers (-ngl) 24. Replaces llama.cpp's --tensor-split, which takes proportions.
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub layers: Option<Vec<usize>>,
}

/// Describes the division of layers in a line; `None` for one device.
pub fn divided(decoder: &Decoder) -> Option<String> {
    let one = |span: &Span| {
        let Range { start, end } = span.layers;
        format!(
            "{} on {}",
            if end - start == 1 { format!("{start}") } else { format!("{start} to {}", end - 1) },
            span.device.capabilities().id
        )
    };
    let all: Vec<String> = decoder.spans().map(one).collect();
    (all.len() > 1).then(|| format!("layers {}", all.join(", ")))
}

/// Low-rank adapters.
#[derive(ClapArgs, Clone, Debug, Default)]
pub struct LoraArgs {
    /// LoRA adapter: PEFT folder or GGUF file; PATH=SCALE multiplies its effect (repeatable: they add up)
    #[arg(long, value_name = "PATH[=SCALE]", value_parser = adapter)]
    pub lora: Vec<(PathBuf, f32)>,
}

/// Parses `PATH` or `PATH=SCALE`. A path that contains an equals sign is used unchanged if it exists.
fn adapter(text: &str) -> std::result::Result<(PathBuf, f32), String> {
    let Some((path, scale)) = text.rsplit_once('=').filter(|_| !Path::new(text).exists()) else {
        return Ok((text.into(), 1.0));
    };
    let scale: Option<f32> = scale.trim().parse().ok().filter(|scale: &f32| scale.is_finite());
    let scale = scale.ok_or_else(|| format!("expected PATH or PATH=SCALE with a number, found {text:?}"))?;
    Ok((path.into(), scale))
}

impl ModelArgs {
    /// Opens the model on its device.
    pub fn open(&self, context: &Context) -> Result<LoadedModel> {
        let devices = context.open_devices(&self.device)?;
        let options = Options {
            dtype: self.dtype,
            context: self.ctx_size,
            dequantise: self.dequantise,
            activations: self.activations,
            layers: self.division.layers.as_deref(),
            ..Options::default()
        };
        let model = shown(context, |bar| {
            LoadedModel::open_adapted(&self.model, &self.lora.lora, &devices, options, bar)
        })?;
        if let Some(divided) = divided(model.decoder()) {
            out::note(&divided);
        } else if let Some(span) = model.decoder().spans().next().filter(|_| devices.len() > 1) {
            out::note(&format!("all layers on {}", span.device.capabilities().id));
        }
        if self.ctx_size.is_none() && model.context() < model.trained_context() {
            out::note(&format!(
                "using a context of {} tokens, which fits in memory; the model's context is {}",
                model.context(),
                model.trained_context()
            ));
        }
        Ok(model)
    }
}

/// Loads something and shows the progress.
pub fn shown<T>(
    context: &Context,
    load: impl FnOnce(&mut dyn FnMut(Loading<'_>) -> Result<()>) -> Result<T>,
) -> Result<T> {
    let mut bar = Bar { context, bar: None, printed: Instant::now() };
    let loaded = load(&mut |p| bar.show(&p));
    if let Some(bar) = bar.bar {
        bar.finish_and_clear();
    }
    loaded
}

struct Bar<'a> {
    context: &'a Context,
    bar: Option<ProgressBar>,
    printed: Instant,
}

impl Bar<'_> {
    fn show(&mut self, p: &Loading<'_>) -> Result<()> {
        if self.context.live() {
            let bar = self.bar.get_or_insert_with(|| {
                let bar = ProgressBar::with_draw_target(Some(p.total), ProgressDrawTarget::stderr_with_hz(8));
                bar.set_style(out::style("loading {bar:24} {percent}%  {wide_msg}  ETA {eta}"));
                bar
            });
            bar.set_position(p.done);
            bar.set_message(format!("{} {}", p.device, p.name));
        } else if self.printed.elapsed() >= PLAIN_EVERY {
            self.printed = Instant::now();
            let percent = p.done as f64 / p.total.max(1) as f64 * 100.0;
            out::note(&format!("loading to {}: {percent:.0}%", p.device));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_are_paths_with_a_factor() {
        assert_eq!(adapter("a/b"), Ok(("a/b".into(), 1.0)));
        assert_eq!(adapter("a=b.gguf=0.5"), Ok(("a=b.gguf".into(), 0.5)));
        assert_eq!(adapter("a=-2"), Ok(("a".into(), -2.0)));
        for wrong in ["a=b", "a=", "a=inf", "a=nan"] {
            assert!(adapter(wrong).unwrap_err().contains("PATH=SCALE"), "{wrong}");
        }
    }
}
