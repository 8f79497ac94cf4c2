//! `netcl bench vision`: whole training steps of image networks: forward, backward and AdamW.

use super::losses;
use super::profile::file_of;
use super::{Bench, Common, Line};
use crate::named::named;
use crate::out;
use clap::builder::PossibleValuesParser;
use netcl::device::human;
use netcl::model::params::Params;
use netcl::model::vision::{Network, models};
use netcl::prelude::*;
use netcl::tensor::Generator;
use netcl::tensor::ops::cross_entropy::{CrossEntropy, cross_entropy};
use netcl::train::Stepper;
use netcl::train::config::GraphMode;
use netcl::train::optim::{AdamW, Optimizer, ParamGroup};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;

/// Flags of `bench vision`.
#[derive(clap::Args)]
#[command(after_help = TIMED)]
pub struct Args {
    #[command(flatten)]
    pub common: Common,
    /// Network (repeatable)
    #[arg(long, default_value = "resnet50", value_parser = PossibleValuesParser::new(models::MODELS))]
    network: Vec<String>,
    /// Images per step
    #[arg(long, default_value_t = 128)]
    batch: usize,
    /// Channels of an image
    #[arg(long, default_value_t = 3)]
    channels: usize,
    /// Height and width of an image
    #[arg(long, default_value_t = 224)]
    size: usize,
    /// Number of classes
    #[arg(long, default_value_t = 1000)]
    classes: usize,
    /// Replay captured steps
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = named(&GraphMode::NAMES))]
    graph: GraphMode,
    /// Let the peer compile its model (torch.compile)
    #[arg(long)]
    compile: bool,
    /// Let the peer store weights in 16 bits instead of converting them (autocast)
    #[arg(long)]
    pure: bool,
    /// Profile some further steps: print time per kernel and write a trace [default FILE: trace.json]
    ///
    /// ui.perfetto.dev opens the trace. With several networks, their names are added to the file name.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "trace.json")]
    profile: Option<PathBuf>,
}

const TIMED: &str = "Images are random and stored on the device. The peer runs only residual networks, with channels_last and a fused AdamW. Those \
    whose names end in -small start with a 3 x 3 convolution without pooling, for images of 32 x 32.";

/// Batches used in turn.
const BATCHES: usize = 2;
/// Learning rates of the timed and of the checked steps.
const RATES: [f64; 2] = [1e-3, 1e-4];
/// Number of checked steps.
const CHECKED: usize = 4;

pub fn run(args: &Args, bench: &mut Bench) -> Result<()> {
    args.network.iter().try_for_each(|network| case(bench, network, args))
}

fn case(bench: &mut Bench, network: &str, args: &Args) -> Result<()> {
    bench.device.release_cached_memory();
    let seen = |steps: &mut Steps| -> Result<Vec<f32>> {
        steps.rate = RATES[1];
        let losses = (0..CHECKED).map(|_| steps.step(0)?.item()).collect();
        steps.rate = RATES[0];
        losses
    };
    let eager = match args.graph {
        GraphMode::Off => None,
        _ => Some(seen(&mut Steps::new(bench, network, args, GraphMode::Off)?)?),
    };
    bench.device.finish()?;
    bench.device.release_cached_memory();
    bench.device.reset_memory_peak();
    let mut steps = Steps::new(bench, network, args, args.graph)?;
    let new = losses::New { classes: args.classes, within: 2.0 };
    losses::check("vision", &seen(&mut steps)?, eager.as_deref(), new, bench.dtype != DType::F16)?;
    let shape = vec![args.batch, args.channels, args.size, args.size];
    let device = bench.device.clone();
    let flops = super::ops::flops(&device, &mut || steps.run().map(drop))?;
    let mut line =
        Line { op: "vision".into(), shape: shape.clone(), flops, checked: true, ..Line::default() };
    line.extra.insert("network".into(), network.into());
    line.extra.insert("parameters".into(), steps.params.count().into());
    line.extra.insert("graph".into(), steps.stepper.is_captured().into());
    line.extra.insert("memory_peak".into(), device.memory().peak.into());
    let request = json!({
        "op": "vision", "shape": shape, "network": network, "classes": args.classes, "compile": args.compile, "autocast": !args.pure,
        "dtype": bench.kind,
    });
    let known = ["resnet18", "resnet50", "resnet18-small"].contains(&network) && bench.dtype != DType::F16;
    let line = bench.measure(line, known.then_some(request), &mut || steps.run().map(drop))?;
    let rate = |ms: f64| args.batch as f64 / ms * 1e3;
    let peer = line.peer_median_ms.map_or(String::new(), |ms| format!(", peer {:.0}", rate(ms)));
    let memory = line.peer_memory.map_or(String::new(), |bytes| format!(" (peer {})", human(bytes)));
    out::note(&format!(
        "{network} in {}: {:.0} images/s{peer}; {} images of {} x {}{}; peak {} of device memory{memory}",
        bench.kind,
        rate(line.median_ms),
        args.batch,
        args.size,
        args.size,
        if steps.stepper.is_captured() { ", steps replayed" } else { "" },
        human(device.memory().peak as u64)
    ));
    args.profile.as_deref().map_or(Ok(()), |file| {
        let about = json!({ "network": network, "replayed": steps.stepper.is_captured() });
        let file = file_of(file, network, args.network.len() == 1);
        bench.profile((about, 1), &file, &mut || steps.run().map(drop))
    })
}

/// A network in training on random images.
struct Steps {
    params: Params,
    network: Network,
    optimizer: Optimizer,
    /// `(N, C, H, W)` with adjacent channels, and labels.
    batches: Vec<(Tensor, Tensor)>,
    /// Buffer from which a captured step reads its batch.
    inputs: (Tensor, Tensor),
    stepper: Stepper,
    turn: usize,
    rate: f64,
}

impl Steps {
    fn new(bench: &Bench, network: &str, args: &Args, graph: GraphMode) -> Result<Self> {
        let (device, dtype) = (&bench.device, bench.dtype);
        let dims = [args.batch, args.size, args.size, args.channels];
        super::fits(device, &format!("a batch of {network}"), &[&dims, &dims, &dims, &dims], dtype)?;
        let described = models::of(network, [args.channels, args.size, args.size], args.classes)?;
        let (params, network) = Params::build(device, dtype, Some(1), |params| described.build(params, ""))?;
        let rule = Arc::new(AdamW { betas: [0.9, 0.99], eps: 1e-8 });
        let optimizer = Optimizer::for_storage(rule, ParamGroup::gpt(&params.trained(), 0.05), dtype)?;
        let mut from = Generator::new(1);
        let mut batch = || -> Result<(Tensor, Tensor)> {
            let images =
                Tensor::from_f32(device, dims, &from.normal(dims.iter().product(), 0.0, 1.0), dtype)?;
            let labels: Vec<u32> = (0..args.batch).map(|i| (i % args.classes.max(1)) as u32).collect();
            Ok((images.permute(&[0, 3, 1, 2])?, Tensor::from_u32(device, [args.batch], &labels)?))
        };
        let batches = (0..BATCHES).map(|_| batch()).collect::<Result<_>>()?;
        let (inputs, stepper) = (batch()?, Stepper::new(device, graph));
        Ok(Self { params, network, optimizer, batches, inputs, stepper, turn: 0, rate: RATES[0] })
    }

    /// Enqueues one step with the next batch; returns its loss, which the next step may overwrite.
    fn run(&mut self) -> Result<Tensor> {
        self.turn += 1;
        self.step(self.turn)
    }

    fn step(&mut self, turn: usize) -> Result<Tensor> {
        let Self { network, optimizer, batches, inputs, stepper, rate, .. } = self;
        let batch = &batches[turn % BATCHES];
        let fixed = !stepper.is_eager();
        if fixed {
            for (from, to) in [(&batch.0, &inputs.0), (&batch.1, &inputs.1)] {
                to.device().copy(from.storage(), 0, to.storage(), 0, to.storage().bytes())?;
            }
        }
        let (x, labels) = if fixed { &*inputs } else { batch };
        optimizer.set_rate(*rate)?;
        let loss = stepper.run(|| {
            optimizer.zero_grad();
            let loss = cross_entropy(&network.forward(x, true)?, labels, CrossEntropy::default())?;
            optimizer.backward(&loss)?;
            optimizer.apply()?;
            optimizer.zero_grad();
            Ok(loss.detach())
        })?;
        optimizer.count();
        Ok(loss)
    }
}
