//! A step on the simulated GPU: run with all checks, compared, and its time modeled.

use super::measured::{StepRun, number};
use super::problem::Problem;
use super::steps::{Arg, Grid, Launch, Step, side};
use crate::sim::report::Report;
use aethercl::machine::{Binding, Completion, Gpu, GpuError, KernelLaunch, MachineOptions};
use aethercl::model::Profile;
use aethercl::{Access, Checks, Includes, LaunchOptions, NdRange, Program, Source};
use netcl::device::Capabilities;
use netcl::kernel::ceiling::Ceilings;
use netcl::prelude::*;
use std::sync::Arc;

/// A simulated device.
pub struct Simulated {
    pub profile: Profile,
    pub capabilities: Capabilities,
    /// Number of groups of each launch to run, if not all: then there are times, but no results.
    pub sample: Option<u64>,
}

/// A buffer in the machine's memory.
#[derive(Clone, Copy)]
struct MachineBuffer {
    address: u64,
    bytes: u64,
}

impl MachineBuffer {
    fn bind(self, access: Access) -> Binding {
        Binding::Buffer { address: self.address, bytes: self.bytes, access }
    }
}

/// Memory of a step.
struct Operands {
    inputs: Vec<MachineBuffer>,
    scores: Option<MachineBuffer>,
    output: MachineBuffer,
}

fn failed(e: GpuError) -> Error {
    Error::launch(e.to_string())
}

impl Simulated {
    /// Returns the arithmetic and memory rates of the profile.
    pub fn ceilings(&self) -> Ceilings {
        let (compute, memory) = (&self.profile.compute, &self.profile.memory);
        let clock_ghz = f64::from(compute.clock_mhz) * 1e-3;
        Ceilings {
            gflops: 2.0 * f64::from(compute.units) * f64::from(self.profile.rates.float) * clock_ghz,
            gbps: memory.gb_per_s * memory.efficiency,
        }
    }

    /// Runs a step with all checks and compares its result with f64; its time comes from the model.
    pub fn run(&self, step: &'static Step, problem: &Problem) -> Result<StepRun> {
        let mut machine = Machine::open(self, step, problem)?;
        let mut ns = 0;
        let mut slowest = 0;
        let mut bound_by = None;
        let mut details = Vec::new();
        for launch in step.launches {
            let done = machine.launch(launch)?;
            let report = Report::new(launch.entry, &self.profile, &done);
            report.verdict().map_err(|e| e.context(report.text(true)))?;
            details.extend(report.text(true).lines().map(String::from));
            let outcome = done.outcome.map_err(failed)?;
            let estimate =
                outcome.estimate.ok_or_else(|| Error::internal("a launch without a modeled time"))?;
            ns += estimate.ns;
            if estimate.ns >= slowest {
                (slowest, bound_by) = (estimate.ns, Some(estimate.bound().to_string()));
            }
        }
        let checked = match self.sample {
            Some(_) => None,
            None => {
                let result = machine.result()?;
                let (_, width) = problem.rows();
                let mut read = |row: usize| Ok(result[row * width..(row + 1) * width].to_vec());
                Some(problem.check(&mut read).map_err(|e| e.context(step.file))?)
            }
        };
        Ok(StepRun { seconds: ns as f64 * 1e-9, checked, bound_by, details })
    }
}

/// The machine with a built step and its operands in memory.
struct Machine<'a> {
    problem: &'a Problem,
    side: usize,
    program: Arc<Program>,
    gpu: Gpu,
    queue: usize,
    operands: Operands,
    options: LaunchOptions,
}

impl<'a> Machine<'a> {
    fn open(on: &Simulated, step: &'static Step, problem: &'a Problem) -> Result<Self> {
        let side = side(problem.size, &on.capabilities);
        let defines = step.defines(problem.size, side).map(|(name, value)| (name, value.into()));
        let text = step.kernel.text(&defines);
        let program = Program::build(&Source { name: step.file, text: &text }, "", &Includes::none())
            .map_err(|e| Error::build(format!("{} does not build\n{}", step.file, e.log.trim_end())))?;
        let mut gpu =
            Gpu::new(on.profile.clone(), MachineOptions { count_all: true, ..MachineOptions::default() });
        let queue = gpu.open_queue().map_err(failed)?;
        let mut place = |tag: &str, values: &[u8]| {
            let bytes = values.len() as u64;
            let address = gpu.allocate(bytes, tag).map_err(failed)?;
            gpu.write(queue, address, values.to_vec(), None).map_err(failed)?;
            Ok(MachineBuffer { address, bytes })
        };
        let [a, b, _] = problem.size;
        let operands = Operands {
            inputs: problem.inputs.iter().map(|data| place("input", &bytes(data))).collect::<Result<_>>()?,
            scores: step
                .stores_scores()
                .then(|| place("scores", &bytes(&vec![0.0; a * b * b])))
                .transpose()?,
            output: place("output", &bytes(&vec![0.0; problem.outputs()]))?,
        };
        let options = LaunchOptions {
            checks: Checks::parse(if on.sample.is_some() { "" } else { "all" }).map_err(Error::internal)?,
            threads: std::thread::available_parallelism().map_or(1, Into::into),
            sub_group: on.profile.compute.simd_width,
            sample: on.sample,
            ..LaunchOptions::default()
        };
        Ok(Self { problem, side, program: Arc::new(program), gpu, queue, operands, options })
    }

    fn launch(&mut self, launch: &Launch) -> Result<Completion> {
        let Grid { groups, local } = (launch.grid)(self.problem.size, self.side);
        let global = std::array::from_fn(|i| (groups[i] * local[i]) as u64);
        let range = NdRange { global, local: local.map(|n| n as u64), offset: [0; 3], dimensions: 3 };
        let bindings = launch.args.iter().map(|arg| self.bind(*arg)).collect::<Result<Vec<_>>>()?;
        let work = KernelLaunch::new(&self.program, launch.entry, bindings, range, self.options.clone());
        let fence = self.gpu.launch(self.queue, Arc::new(work), None).map_err(failed)?;
        self.gpu.wait(fence).map_err(failed)
    }

    fn bind(&self, arg: Arg) -> Result<Binding> {
        let scores = || self.operands.scores.ok_or_else(|| Error::internal("a step without scores"));
        Ok(match arg {
            Arg::Input(i) => self.operands.inputs[i].bind(Access::Read),
            Arg::Scores => scores()?.bind(Access::Read),
            Arg::WriteScores => scores()?.bind(Access::Write),
            Arg::Output => self.operands.output.bind(Access::Write),
            Arg::Extent(extent) => Binding::Scalar(number(extent(self.problem.size))?.to_le_bytes().to_vec()),
            Arg::Scale => Binding::Scalar(self.problem.scale().to_le_bytes().to_vec()),
        })
    }

    fn result(&mut self) -> Result<Vec<f32>> {
        let MachineBuffer { address, bytes } = self.operands.output;
        let fence = self.gpu.read(self.queue, address, bytes, None).map_err(failed)?;
        let data = self.gpu.wait(fence).map_err(failed)?.outcome.map_err(failed)?.data;
        let float = |c: &[u8]| c.try_into().map_or(f32::NAN, f32::from_le_bytes);
        Ok(data.chunks_exact(4).map(float).collect())
    }
}

/// Returns values as stored on the device. Steps in 16 bits need tensor cores, which the machine does not have.
fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}
