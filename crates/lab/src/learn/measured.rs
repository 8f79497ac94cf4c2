//! A step on a real device: run, compared, timed.

use super::problem::{Checked, Problem};
use super::steps::{Arg, Step, side};
use crate::bench::measure::Rounds;
use crate::profile;
use netcl::kernel::ceiling::{self, Ceilings};
use netcl::prelude::*;

/// A device and its peak rates.
pub struct MeasuredDevice<'a> {
    pub device: &'a Device,
    pub rounds: Rounds,
    /// Peak rates of f32 multiply-adds, and of products in 16 bits if a step is measured in them.
    ceilings: [Option<Ceilings>; 2],
}

/// The result of a step's run.
pub struct StepRun {
    pub seconds: f64,
    pub checked: Option<Checked>,
    /// The limiting resource, if the device is modeled.
    pub bound_by: Option<String>,
    /// Further lines about this run.
    pub details: Vec<String>,
}

/// Memory of a step.
struct Operands {
    inputs: Vec<Tensor>,
    scores: Option<Tensor>,
    output: Tensor,
}

impl<'a> MeasuredDevice<'a> {
    pub fn new(device: &'a Device, rounds: usize) -> Self {
        let rounds = Rounds { count: rounds.max(1), sample_ms: 2.0 };
        Self { device, rounds, ceilings: [None, None] }
    }

    /// Returns the device's peak rates with operands of a type.
    pub fn ceilings(&mut self, dtype: DType) -> Result<Ceilings> {
        let slot = usize::from(dtype != DType::F32);
        if let Some(known) = self.ceilings[slot] {
            return Ok(known);
        }
        let found = match dtype {
            DType::F32 => ceiling::measure(self.device)?,
            dtype => profile::ceilings(self.device, dtype)?
                .ok_or_else(|| Error::internal("only a simulated device has measured ceilings"))?,
        };
        self.device.finish()?;
        self.device.release_cached_memory();
        self.ceilings[slot] = Some(found);
        Ok(found)
    }

    /// Runs a step, compares its result with f64, and times it.
    pub fn run(&self, step: &'static Step, problem: &Problem) -> Result<StepRun> {
        let operands = self.operands(step, problem)?;
        let mut details = Vec::new();
        let output = if step.launches.is_empty() {
            let (output, kernels) = self.own(&operands)?;
            details.push(format!("kernels: {}", kernels.join(", ")));
            output
        } else {
            self.launch(step, problem, &operands)?;
            operands.output.clone()
        };
        let (rows, _) = problem.rows();
        let mut read = |row: usize| {
            if row < rows { output.slice(0, row..row + 1)?.to_vec() } else { Ok(Vec::new()) }
        };
        let checked = problem.check(&mut read).map_err(|e| e.context(step.file))?;
        let mut again = || {
            if step.launches.is_empty() {
                return no_grad(|| operands.inputs[0].matmul(&operands.inputs[1])).map(|_| ());
            }
            self.launch(step, problem, &operands)
        };
        let times = self.rounds.measure(self.device, &mut again, None, None)?;
        Ok(StepRun { seconds: times.median_ms * 1e-3, checked: Some(checked), bound_by: None, details })
    }

    fn operands(&self, step: &Step, problem: &Problem) -> Result<Operands> {
        let [a, b, c] = problem.size;
        let (rows, width) = problem.rows();
        let shapes: Vec<[usize; 2]> = match problem.inputs.len() {
            2 => vec![[a, c], [c, b]],
            count => vec![[rows, width]; count],
        };
        let upload = |(data, shape): (&Vec<f32>, [usize; 2])| {
            Tensor::from_f32(self.device, shape, data, problem.dtype)
        };
        Ok(Operands {
            inputs: problem.inputs.iter().zip(shapes).map(upload).collect::<Result<_>>()?,
            scores: step
                .stores_scores()
                .then(|| Tensor::zeros(self.device, [a * b, b], DType::F32))
                .transpose()?,
            output: Tensor::zeros(self.device, [rows, width], problem.dtype)?,
        })
    }

    /// Runs netcl's own product; returns it, and the kernels that it launched.
    fn own(&self, operands: &Operands) -> Result<(Tensor, Vec<&'static str>)> {
        self.device.start_profile();
        let output = no_grad(|| operands.inputs[0].matmul(&operands.inputs[1]));
        let launches = self.device.stop_profile_each()?;
        Ok((output?, launches.iter().map(|launch| launch.variant).collect()))
    }

    fn launch(&self, step: &'static Step, problem: &Problem, operands: &Operands) -> Result<()> {
        let side = side(problem.size, self.device.capabilities());
        for each in step.launches {
            let grid = (each.grid)(problem.size, side);
            let mut launch = step.kernel.launch(each.entry).groups3(grid.groups).local(grid.local);
            for (name, value) in step.defines(problem.size, side) {
                launch = launch.define(name, value);
            }
            for arg in each.args {
                let scores =
                    || operands.scores.as_ref().ok_or_else(|| Error::internal("a step without scores"));
                launch = match arg {
                    Arg::Input(i) => launch.read(&operands.inputs[*i]),
                    Arg::Scores => launch.read(scores()?),
                    Arg::WriteScores => launch.write(scores()?),
                    Arg::Output => launch.write(&operands.output),
                    Arg::Extent(extent) => launch.scalar(number(extent(problem.size))?),
                    Arg::Scale => launch.scalar(problem.scale()),
                };
            }
            launch.run()?;
        }
        Ok(())
    }
}

/// Converts a size to the type that kernels use.
pub fn number(extent: usize) -> Result<u32> {
    u32::try_from(extent).map_err(|_| {
        Error::format(format!("{extent} is too large for these kernels: it needs more than 32 bits"))
    })
}
