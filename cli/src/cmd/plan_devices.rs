//! `netcl plan`: predicts training on a number of devices, with a model of step time.

use crate::context::Context;
use crate::named::{named, named_by};
use crate::out;
use crate::profile;
use crate::table::Table;
use clap::builder::PossibleValuesParser;
use netcl::device::human;
use netcl::dist::Link;
use netcl::model::layers::Recompute;
use netcl::prelude::*;
use netcl::train::config::{DTYPES, TrainConfig, models, storage_type};
use netcl::train::scaling::{Compute, H200, Machine, Plan, RunToPlan, Strategy};
use netcl_lab::bench;
use netcl_lab::model_size::ModelSize;
use serde_json::{Value, json};
use std::time::Duration;

/// Predict training on 2 to 1024 devices: tokens/s, efficiency, memory per device, and best division
#[derive(clap::Args)]
pub struct Args {
    /// Number of identical devices
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    devices: u32,
    /// Link bandwidth of a device, such as 25GB/s; its share if devices share a network card
    #[arg(long, value_name = "BYTES/s", default_value = "25GB/s", value_parser = quantity)]
    link: f64,
    /// Link latency in microseconds
    #[arg(long, value_name = "US", default_value_t = 5.0)]
    latency: f64,
    /// Preset with model, batch and storage type
    #[arg(long, default_value = "gpt2-124m", value_parser = PossibleValuesParser::new(models()))]
    preset: String,
    #[command(flatten)]
    size: ModelSize,
    /// Tokens of the vocabulary [default: the preset's usual tokenizer]
    #[arg(long)]
    vocab: Option<usize>,
    /// Maximum sequences per device and forward pass [default: the preset's batch]
    #[arg(long)]
    batch: Option<usize>,
    /// Sequences per step on all devices together [default: the preset's batch × grad-accum]
    #[arg(long, value_name = "N")]
    step_batch: Option<usize>,
    /// Storage type of weights and activations
    #[arg(long, value_parser = named_by(&DTYPES, storage_type))]
    dtype: Option<DType>,
    /// Results that the backward pass recomputes
    #[arg(long, value_name = "WHAT", value_parser = named(&Recompute::NAMES))]
    recompute: Option<Recompute>,
    /// Kind of device: h200, with measured constants, or here, a device of this machine
    #[arg(long, value_name = "KIND", default_value = "here", value_parser = ["here", "h200"])]
    device_type: String,
    /// Device of this machine
    #[arg(long, default_value = "auto")]
    device: String,
    /// Measure whole steps instead of assuming half the speed of matrix products
    #[arg(long)]
    measure: bool,
    /// Tokens per second of one device, measured with `netcl bench train` or in a run
    #[arg(long, value_name = "N", conflicts_with = "measure")]
    tokens_per_second: Option<f64>,
    /// Floating-point operations per second of training steps, such as 400T
    #[arg(long, value_name = "N", value_parser = quantity, conflicts_with_all = ["measure", "tokens_per_second"])]
    flops: Option<f64>,
    /// Memory of a device, such as 80GB
    #[arg(long, value_name = "BYTES", value_parser = quantity)]
    memory: Option<f64>,
    /// Memory bandwidth of a device
    #[arg(long, value_name = "BYTES/s", value_parser = quantity)]
    memory_bandwidth: Option<f64>,
    /// Bandwidth of copies between device and host, per direction
    #[arg(long, value_name = "BYTES/s", value_parser = quantity)]
    relay: Option<f64>,
    /// Exchange gradients after the backward pass, not during it
    #[arg(long)]
    no_overlap: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Share of the speed of large matrix products that training steps reach, if it was not measured.
const UTILIZATION: f64 = 0.5;
/// Share of a device's memory that a run may use.
const USABLE: f64 = 0.95;
/// Rate at which hosts add up vectors, in bytes per second.
const SUMS: f64 = 10e9;

/// Parses `25GB/s`, `400T`, `80GB`: a number with a decimal unit.
fn quantity(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches("/s").trim_end_matches("FLOP").trim_end_matches(['B', 'b']);
    let (digits, unit) = match number.char_indices().next_back() {
        Some((at, unit @ ('k' | 'K' | 'M' | 'G' | 'T' | 'P'))) => (&number[..at], unit),
        _ => (number, ' '),
    };
    let unit = match unit {
        'k' | 'K' => 1e3,
        'M' => 1e6,
        'G' => 1e9,
        'T' => 1e12,
        'P' => 1e15,
        _ => 1.0,
    };
    let value = digits.trim().parse::<f64>().ok().map(|n| n * unit).filter(|n| n.is_finite() && *n > 0.0);
    value.ok_or_else(|| "expected a number above 0 with a unit, such as 25GB/s or 400T".into())
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result<()> {
    if !(args.latency >= 0.0 && args.latency.is_finite()) {
        return Err(Error::format(format!("--latency {} is not a valid time", args.latency)));
    }
    let config = config(args)?;
    let model = config.decoder(args.vocab.unwrap_or_else(|| bench::vocabulary(&config)))?;
    let (machine, compute, source) = constants(args, (&config, &model), context)?;
    let link = Link { delay: Duration::from_secs_f64(args.latency.min(1e9) * 1e-6), bytes_per_s: args.link };
    let run = RunToPlan { model: &model, config: &config, machine, compute, link, overlap: !args.no_overlap };
    let devices = args.devices as usize;
    let (best, all) = (run.best(devices)?, run.plans(devices));
    let powers = (0..).map(|i| 1usize << i).take_while(|n| *n <= devices.max(1024));
    let by_number = powers.map(|n| run.best(n)).collect::<Result<Vec<_>>>()?;
    if args.json {
        let of = |plans: &[Plan]| plans.iter().map(row_json).collect::<Vec<_>>();
        return out::json(&json!({
            "preset": args.preset, "parameters": model.parameters(), "source": source,
            "best": row_json(&best), "ways": of(&all), "by_devices": of(&by_number),
        }));
    }
    print(args, (&run, &source), (&best, &all, &by_number))
}

fn config(args: &Args) -> Result<TrainConfig> {
    let base = TrainConfig::preset(&args.preset)?;
    let size = &args.size;
    let config = TrainConfig {
        layers: size.layers.unwrap_or(base.layers),
        heads: size.heads.unwrap_or(base.heads),
        width: size.width.unwrap_or(base.width),
        context: size.context.unwrap_or(base.context),
        dtype: args.dtype.unwrap_or(base.dtype),
        recompute: args.recompute.unwrap_or(base.recompute),
        ..base
    };
    let rows = args.step_batch.unwrap_or(config.batch * config.grad_accum as usize);
    let batch = args.batch.unwrap_or(config.batch).min(rows);
    if batch == 0 || rows == 0 {
        return Err(Error::format("--batch and --step-batch must be at least 1"));
    }
    let grad_accum = u32::try_from(rows.div_ceil(batch)).unwrap_or(u32::MAX);
    Ok(TrainConfig { batch, grad_accum, ..config })
}

/// Returns the constants of the devices, the memory of one, and the source of these numbers.
fn constants(
    args: &Args,
    (config, model): (&TrainConfig, &netcl::model::decoder::DecoderConfig),
    context: &Context,
) -> Result<(Machine, Compute, String)> {
    let narrow = config.dtype != DType::F32;
    let (machine, flops, source) = match args.device_type.as_str() {
        "h200" => (H200.0, Some(H200.1(narrow)), "constants measured on an H200".to_owned()),
        _ => here(args, config, context)?,
    };
    let machine = Machine {
        memory: args.memory.unwrap_or(machine.memory) * USABLE,
        memory_bandwidth: args.memory_bandwidth.unwrap_or(machine.memory_bandwidth),
        relay: args.relay.unwrap_or(machine.relay),
        ..machine
    };
    if let Some(speed) = args.tokens_per_second {
        return match speed.is_finite() && speed > 0.0 {
            true => Ok((machine, Compute::TokensPerS(speed), "tokens/s as given".into())),
            false => Err(Error::format(format!("--tokens-per-second {speed} is not a valid speed"))),
        };
    }
    if let Some(flops) = args.flops {
        return Ok((machine, Compute::Flops(flops), "FLOP/s as given".into()));
    }
    if args.measure {
        let device = context.open_device_with(&args.device, config.matmul_precision)?;
        let step = bench::step_seconds(&device, model, config)?;
        let link = Link { delay: Duration::ZERO, bytes_per_s: 1.0 };
        let update =
            RunToPlan { model, config, machine, compute: Compute::Flops(1.0), link, overlap: false }.update();
        let update = update.min(step / 2.0);
        let compute = Compute::Measured { rows: config.batch, passes: step - update, update };
        return Ok((machine, compute, format!("steps measured on {}", device.capabilities().id)));
    }
    let flops = flops.ok_or_else(|| Error::internal("the speed of a device is unknown"))?;
    Ok((machine, Compute::Flops(flops), source))
}

/// Returns the constants of this machine's device. Given values are not measured.
fn here(args: &Args, config: &TrainConfig, context: &Context) -> Result<(Machine, Option<f64>, String)> {
    let speed_given = args.tokens_per_second.is_some() || args.flops.is_some();
    if let (true, Some(memory), Some(memory_bandwidth), Some(relay)) =
        (speed_given, args.memory, args.memory_bandwidth, args.relay)
    {
        return Ok((Machine { memory, memory_bandwidth, relay, sums: SUMS }, None, String::new()));
    }
    let device = context.open_device(&args.device)?;
    let c = device.capabilities();
    if c.simulated {
        return Err(Error::unsupported(format!(
            "{} is simulated, so its speed cannot predict a real device's; use --device-type h200, or give --flops or --tokens-per-second with \
             --memory, --memory-bandwidth and --relay",
            c.id
        )));
    }
    let ceilings = profile::ceilings(&device, config.dtype)?;
    let ceilings =
        ceilings.ok_or_else(|| Error::unsupported(format!("{}: its peak rates are unknown", c.id)))?;
    let memory_bandwidth = ceilings.gbps * 1e9;
    let machine = Machine {
        memory: c.global_mem as f64,
        memory_bandwidth,
        // CPU devices and their host share the same memory.
        relay: if c.is_cpu() { memory_bandwidth } else { H200.0.relay },
        sums: SUMS,
    };
    let flops = ceilings.gflops * 1e9 * UTILIZATION;
    let source = format!("{:.0} % of the measured speed of matrix products on {}", 100.0 * UTILIZATION, c.id);
    Ok((machine, Some(flops), source))
}

fn row_json(plan: &Plan) -> Value {
    json!({
        "devices": plan.devices,
        "way": plan.strategy.to_string(),
        "rows": plan.rows,
        "grad_accum": plan.accum,
        "step_s": plan.step,
        "passes_s": plan.parts[0],
        "exchange_s": plan.parts[1],
        "update_s": plan.parts[2],
        "tokens_per_s": plan.tokens_per_s,
        "efficiency": plan.efficiency,
        "memory": plan.memory,
        "fits": plan.fits,
    })
}

const COLUMNS: [&str; 8] =
    [">devices", "way", ">rows", ">accum", ">ms/step", ">exchange", ">tokens/s", ">efficiency"];

fn table(plans: &[Plan]) -> String {
    let mut table = Table::new(&[&COLUMNS[..], &[">memory", ""]].concat());
    for plan in plans {
        table.row([
            plan.devices.to_string(),
            plan.strategy.to_string(),
            plan.rows.to_string(),
            plan.accum.to_string(),
            format!("{:.1}", plan.step * 1e3),
            format!("{:.1} %", 100.0 * plan.parts[1] / plan.step),
            format!("{:.0}", plan.tokens_per_s),
            format!("{:.1} %", 100.0 * plan.efficiency),
            human(plan.memory as u64),
            if plan.fits { String::new() } else { "does not fit".into() },
        ]);
    }
    table.text()
}

fn print(
    args: &Args,
    (run, source): (&RunToPlan<'_>, &str),
    (best, all, by_number): (&Plan, &[Plan], &[Plan]),
) -> Result<()> {
    out::note(&format!(
        "{}, {} parameters in {}; {source}; {} of memory per device; link of {:.1} GB/s and {} us",
        args.preset,
        run.model.parameters(),
        run.config.dtype,
        human(run.machine.memory as u64),
        args.link / 1e9,
        args.latency
    ));
    out::result(&format!("ways to divide the work between {} devices\n{}", best.devices, table(all)))?;
    out::result(&format!("\nthe best way for each number of devices\n{}", table(by_number)))?;
    let take = match best.strategy {
        _ if !best.fits => format!(
            "no division fits: the smallest needs {} per device. Use more devices, --recompute block, or a smaller model",
            human(best.memory as u64)
        ),
        way => {
            // The batch of a pipeline is that of all replicas.
            let replicas = best.devices / way.stages().max(1);
            let flag = match way {
                Strategy::Data => String::new(),
                Strategy::Optimizer => " --zero 1".into(),
                Strategy::Gradients => " --zero 2".into(),
                Strategy::Pipeline(stages) => format!(" --pipeline {stages}"),
            };
            format!(
                "best way: {way}: netcl train --preset {} --batch {} --grad-accum {}{flag} on {} devices",
                args.preset,
                best.rows * replicas,
                best.accum,
                best.devices
            )
        }
    };
    out::result(&format!("\n{take}"))
}

#[cfg(test)]
mod tests {
    use super::quantity;

    #[test]
    fn quantities_have_decimal_units() {
        let close = |text: &str, value: f64| (quantity(text).unwrap() / value - 1.0).abs() < 1e-12;
        assert!(
            close("25GB/s", 25e9) && close("400T", 4e14) && close("80GB", 80e9) && close("1.5e3", 1500.0)
        );
        assert!(close("990TFLOP/s", 9.9e14) && close("12.5 MB/s", 12.5e6) && close("7", 7.0));
        for wrong in ["", "GB/s", "-1G", "0", "inf", "1X"] {
            assert!(quantity(wrong).is_err(), "{wrong}");
        }
    }
}
