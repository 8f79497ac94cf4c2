//! `netcl bench`: speed as a share of the device's peak, and compared with a peer measured at the same time.

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
    /// Sums of vectors across devices, or across the ranks of mpirun
    Allreduce(allreduce::Args),
    /// Forward and backward of every op
    Ops(ops::Args),
    /// Whole training steps
    Train(train::Args),
    /// Whole training steps of image networks
    Vision(vision::Args),
    /// Tokens generated one after another
    Generate(generate::Args),
    /// Prompts and tokens of language models, from files or with random weights
    Decode(decode::Args),
}

/// Flags of every benchmark.
#[derive(clap::Args)]
pub struct Common {
    /// Device to measure
    #[arg(long, alias = "gpu-id", default_value = "auto")]
    device: String,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    /// Python with PyTorch to compare with; `none` for no peer, `auto` tries python3
    #[arg(long, value_name = "PYTHON", default_value = "auto")]
    peer: String,
    /// Storage type, by any name such as bfloat16 or half
    #[arg(long, default_value = "f32", value_parser = named_by(&DTYPES, storage_type))]
    dtype: DType,
    /// Precision of f32 products: highest, or high, which rounds operands to tf32 on tensor cores
    #[arg(long, value_name = "PRECISION", default_value = "highest", value_parser = named(&MatmulPrecision::NAMES))]
    matmul_precision: MatmulPrecision,
    /// Rounds; each times both sides a few times in turn
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Milliseconds per timed sample; 25 and more show a GPU's sustained speed at its power limit
    #[arg(long, value_name = "MS", default_value = "2", value_parser = sample_ms)]
    sample_ms: f64,
}

fn sample_ms(text: &str) -> Result<f64, String> {
    let ms = text.parse().ok().filter(|ms| (0.01..=10_000.0).contains(ms));
    ms.ok_or_else(|| "expected milliseconds between 0.01 and 10000".into())
}

/// State shared by the benchmarks.
pub struct Bench {
    device: Device,
    dtype: DType,
    /// The peer's name for type and precision.
    kind: String,
    rounds: Rounds,
    ceilings: Ceilings,
    peer: Option<Peer>,
    printer: Printer,
}

/// Refuses tensors of these shapes that do not fit on the device, before any of them is created.
///
/// # Errors
/// `Memory` with the requested and the available memory.
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
        "{what} takes at least {} of memory, {} has {} available; use smaller sizes",
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

/// A device, the storage type, and the peer.
pub struct Setup {
    device: Device,
    dtype: DType,
    /// The peer's name for type and precision.
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
            None => "no peer: use --peer to name a Python that has PyTorch".into(),
        });
        Ok(Self { device, dtype, kind, peer, json: args.json })
    }
}

impl Bench {
    fn open(args: &Common, context: &Context) -> Result<Self> {
        let Setup { device, dtype, kind, peer, json } = Setup::open(args, context)?;
        if device.capabilities().simulated {
            return Err(Error::unsupported(format!(
                "bench: {} is simulated, so its time is modeled, not measured; `netcl sim run` shows it for a kernel",
                device.capabilities().id
            )));
        }
        let ceilings = crate::profile::ceilings(&device, dtype)?
            .ok_or_else(|| Error::internal("only a simulated device has measured ceilings"))?;
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

    /// Profiles further runs; `about` describes them, with the number of steps of each.
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

    /// Does the same for `calls` calls at once, in turn with `calls` calls of something that moves a known number of bytes: the share is relative to
    /// its rate.
    fn compare_with_copy(
        &mut self,
        mut line: Line,
        request: Option<serde_json::Value>,
        (run, calls): (&mut dyn FnMut() -> Result<()>, usize),
        (beside, bytes): (&mut dyn FnMut() -> Result<()>, u64),
    ) -> Result<Line> {
        let peer = self.peer.as_mut().zip(request);
        let mut times = self.rounds.measure(&self.device, run, peer, Some(beside))?;
        times.median_ms /= calls as f64;
        times.reference_ms = times.reference_ms.map(|ms| ms / calls as f64);
        if let Some(ms) = times.called_ms {
            line.extra.insert("peer_called_ms".into(), ms.into());
            line.extra.insert("called_ratio".into(), (ms / times.median_ms).into());
        }
        let before = self.ceilings;
        if let Some(ms) = times.reference_ms.filter(|ms| *ms > 0.0) {
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

    /// Opens the test device, which builds every source as modified by `edit`, and uses the variants that any device supports.
    pub fn device(edit: impl Fn(&str) -> String + Send + Sync + 'static) -> Device {
        let name = std::env::var("NETCL_TEST_DEVICE").unwrap_or_else(|_| "auto".into());
        let inner = open_driver(&name, &Settings::from_env()).unwrap();
        let architecture = Architecture::Unknown;
        let capabilities = Capabilities { architecture, ..inner.capabilities().clone() };
        let driver = FaultDriver::new(inner, Default::default()).pretending(capabilities);
        let driver = driver.edit_sources(Box::new(move |text: &str| Some(edit(text))));
        // No cache, because it identifies programs by their unmodified sources.
        Device::from_driver(Box::new(driver), Settings::default())
    }
}
