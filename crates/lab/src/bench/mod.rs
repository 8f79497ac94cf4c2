//! `netcl bench`: how fast, as a share of what the device can do and beside a peer measured in the same minutes.

mod allreduce;
pub(crate) mod attention;
pub(crate) mod choice;
mod conv;
mod decode;
mod errors;
mod fuse;
pub(crate) mod gemm;
mod generate;
mod line;
mod llama_bench;
mod losses;
pub(crate) mod measure;
mod ops;
mod peer;
mod profile;
mod side_by_side;
mod step;
mod train;
mod versus;
mod vision;

use crate::context::Context;
use crate::named::{named, named_by};
use crate::out;
use line::{Line, Printer};
use measure::Rounds;
use netcl::device::{available_memory, human};
use netcl::kernel::ceiling::Ceilings;
use netcl::prelude::*;
use netcl::train::config::{DTYPES, storage_type};
use peer::Peer;
use profile::Profile;
use std::path::Path;
pub use train::{step_seconds, vocabulary};

/// Measure matrix products, attention, convolutions, every op, training, or language models
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Matrix products of several sizes and layouts
    Gemm(gemm::Args),
    /// Attention, forward and with its gradients
    Attention(attention::Args),
    /// Convolutions of images, forward and with their gradients
    Conv(conv::Args),
    /// Sums of vectors among devices, or among the ranks of mpirun
    Allreduce(allreduce::Args),
    /// Forward and backward of every op
    Ops(ops::Args),
    /// Whole training steps
    Train(train::Args),
    /// Whole training steps of networks for images
    Vision(vision::Args),
    /// Tokens one after the other
    Generate(generate::Args),
    /// Prompts and tokens of language models, from files or of random weights
    Decode(decode::Args),
}

/// Flags of every benchmark.
#[derive(clap::Args)]
pub struct Common {
    /// Device to measure
    #[arg(long, alias = "gpu-id", default_value = "auto")]
    device: String,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// Python with PyTorch to measure against; `none` for no peer, `auto` tries python3
    #[arg(long, value_name = "PYTHON", default_value = "auto")]
    peer: String,
    /// Storage type, by any name such as bfloat16 or half
    #[arg(long, default_value = "f32", value_parser = named_by(&DTYPES, storage_type))]
    dtype: DType,
    /// Products of f32: highest, or high, which rounds their operands to tf32 where tensor cores take that
    #[arg(long, value_name = "PRECISION", default_value = "highest", value_parser = named(&MatmulPrecision::NAMES))]
    matmul_precision: MatmulPrecision,
    /// Rounds; in each, both sides are timed a few times in turn
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Milliseconds of calls in a timed sample; 25 and more show what a GPU sustains at its power limit
    #[arg(long, value_name = "MS", default_value = "2", value_parser = sample_ms)]
    sample_ms: f64,
}

fn sample_ms(text: &str) -> Result<f64, String> {
    let ms = text.parse().ok().filter(|ms| (0.01..=10_000.0).contains(ms));
    ms.ok_or_else(|| "expected milliseconds between 0.01 and 10000".into())
}

/// What the benchmarks share.
pub struct Bench {
    device: Device,
    dtype: DType,
    /// What the peer calls type and precision.
    kind: String,
    rounds: Rounds,
    ceilings: Ceilings,
    peer: Option<Peer>,
    printer: Printer,
}

/// Refuses tensors of these shapes that do not fit the device, before any of them is made.
///
/// # Errors
/// `Memory` with what is requested and available.
pub fn fits(device: &Device, what: &str, shapes: &[&[usize]], dtype: DType) -> Result<()> {
    let bytes =
        |shape: &&[usize]| shape.iter().fold(dtype.size() as u64, |all, &n| all.saturating_mul(n as u64));
    let needed = shapes.iter().map(bytes).fold(0u64, u64::saturating_add);
    let capabilities = device.capabilities();
    let on_host = capabilities.is_cpu() || capabilities.simulated;
    let host = available_memory().filter(|_| on_host).unwrap_or(u64::MAX);
    let available = capabilities.global_mem.min(host);
    if needed <= available {
        return Ok(());
    }
    Err(Error::memory(format!(
        "{what} takes at least {} of memory, {} has {} available; take smaller sizes",
        human(needed),
        capabilities.id,
        human(available)
    )))
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result<()> {
    match &args.what {
        What::Gemm(args) if args.errors => errors::gemm(args, &mut Setup::open(&args.common, context)?),
        What::Ops(ops::Args { against: Some(other), common, sizes, .. }) => {
            versus::run(common, (other, sizes), context)
        }
        What::Ops(args) if args.errors => errors::ops(args, &mut Setup::open(&args.common, context)?),
        What::Gemm(args) => gemm::run(args, &mut Bench::open(&args.common, context)?),
        What::Attention(args) => attention::run(args, &mut Bench::open(&args.common, context)?),
        What::Conv(args) => conv::run(args, &mut Bench::open(&args.common, context)?),
        What::Train(args) => train::run(args, &mut Bench::open(&args.common, context)?),
        What::Vision(args) => vision::run(args, &mut Bench::open(&args.common, context)?),
        What::Generate(args) => generate::run(args, &mut Bench::open(&args.common, context)?),
        What::Decode(args) => decode::run(args, context),
        What::Allreduce(args) => allreduce::run(args, context),
        What::Ops(args) => ops::run(args, &mut Bench::open(&args.common, context)?),
    }
}

/// A device, what is computed in, and the peer.
pub struct Setup {
    device: Device,
    dtype: DType,
    /// What the peer calls type and precision.
    kind: String,
    peer: Option<Peer>,
    json: bool,
}

impl Setup {
    fn open(args: &Common, context: &Context) -> Result<Self> {
        let dtype = args.dtype;
        let device = context.open_device_with(&args.device, args.matmul_precision)?;
        let tf32 = dtype == DType::F32 && args.matmul_precision == MatmulPrecision::High;
        let kind = if tf32 { "tf32".into() } else { dtype.to_string() };
        let peer = Peer::open(&args.peer, &device)?;
        out::note(&match &peer {
            Some(peer) => format!("peer: {}", peer.name()),
            None => "no peer: name a Python that has PyTorch with --peer".into(),
        });
        Ok(Self { device, dtype, kind, peer, json: args.json })
    }
}

impl Bench {
    fn open(args: &Common, context: &Context) -> Result<Self> {
        let Setup { device, dtype, kind, peer, json } = Setup::open(args, context)?;
        if device.capabilities().simulated {
            return Err(Error::unsupported(format!(
                "bench: {} is simulated and its time is modelled, not measured; `netcl sim run` shows it for a kernel",
                device.capabilities().id
            )));
        }
        let ceilings = crate::profile::ceilings(&device, dtype)?
            .ok_or_else(|| Error::internal("a device that is not simulated has no ceilings"))?;
        let mut printer = Printer::new(json);
        printer.ceilings(&device, &ceilings)?;
        Ok(Self {
            device,
            dtype,
            kind,
            rounds: Rounds { count: args.rounds.max(1), sample_ms: args.sample_ms },
            ceilings,
            peer,
            printer,
        })
    }

    /// Where the time of further runs goes; `about` them, and how many steps each is.
    fn profile(
        &mut self,
        (about, steps): (serde_json::Value, u64),
        file: &Path,
        run: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let (device, dtype) = (&self.device, self.dtype);
        Profile { device, dtype, about, steps, file }.print(&mut self.printer, run)
    }

    /// Measures `run`, and the peer on `request`, and prints the line.
    fn measure(
        &mut self,
        mut line: Line,
        request: Option<serde_json::Value>,
        run: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Line> {
        let peer = self.peer.as_mut().zip(request);
        let times = self.rounds.measure(&self.device, run, peer, None)?;
        self.complete(&mut line, &times)?;
        Ok(line)
    }

    /// The same for `calls` calls at once, beside as many of something that moves so many bytes, timed in turn with it: the share is of its
    /// rate.
    fn measure_beside(
        &mut self,
        mut line: Line,
        request: Option<serde_json::Value>,
        (run, calls): (&mut dyn FnMut() -> Result<()>, usize),
        (beside, bytes): (&mut dyn FnMut() -> Result<()>, u64),
    ) -> Result<Line> {
        let peer = self.peer.as_mut().zip(request);
        let mut times = self.rounds.measure(&self.device, run, peer, Some(beside))?;
        times.median_ms /= calls as f64;
        times.beside_ms = times.beside_ms.map(|ms| ms / calls as f64);
        if let Some(ms) = times.called_ms {
            line.extra.insert("peer_called_ms".into(), ms.into());
            line.extra.insert("called_ratio".into(), (ms / times.median_ms).into());
        }
        let before = self.ceilings;
        if let Some(ms) = times.beside_ms.filter(|ms| *ms > 0.0) {
            self.ceilings.gbps = bytes as f64 / ms * 1e-6;
            line.extra.insert("copy_gbps".into(), self.ceilings.gbps.into());
        }
        let printed = self.complete(&mut line, &times);
        self.ceilings = before;
        printed.map(|()| line)
    }

    fn complete(&mut self, line: &mut Line, times: &measure::Times) -> Result<()> {
        line.device = self.device.capabilities().id.clone();
        line.dtype.clone_from(&self.kind);
        line.complete(times, &self.ceilings);
        self.printer.line(line)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use netcl::device::fault::FaultDriver;
    use netcl::device::{Architecture, Capabilities, open_driver};
    use netcl::prelude::*;

    /// The test device, which builds every text as `edit` leaves it, and takes the variants that any device has.
    pub fn device(edit: impl Fn(&str) -> String + Send + Sync + 'static) -> Device {
        let name = std::env::var("NETCL_TEST_DEVICE").unwrap_or_else(|_| "auto".into());
        let inner = open_driver(&name, &Settings::from_env()).unwrap();
        let architecture = Architecture::Unknown;
        let capabilities = Capabilities { architecture, ..inner.capabilities().clone() };
        let driver = FaultDriver::new(inner, Default::default()).pretending(capabilities);
        let driver = driver.edit_sources(Box::new(move |text: &str| Some(edit(text))));
        // No cache: its programs are known by their texts before the edit.
        Device::from_driver(Box::new(driver), Settings::default())
    }
}
