//! Optimizers over all parameters at once. The gradients' norm, clipping and loss scaling are computed on the device.
//!
//! An optimizer is not an operation on the tape: a step changes parameters in place. Parameters within one buffer are updated by one launch per 32
//! of them. Their moments, and the f32 master weights of f16 and bf16 parameters, are flat buffers. Values that change from step to step are in a
//! small device buffer, so a step never waits, and compiles nothing after the first one.

mod arena;
mod control;
mod plan;
mod rules;
mod suite;

use super::prelude::*;
use arena::Arena;
use control::Control;
pub use control::{Counters, LossScale, Report, StepInfo};
use netcl_kernel::Launch;
use plan::{ParameterBatch, UpdatePlan};
pub use rules::{Adam, AdamW, Hyper, KINDS, Lion, OptimizerKind, Rule, Sgd, UpdateStep};
use std::sync::Arc;
pub use suite::ENTRY;

static KERNEL: Kernel = Kernel::new("optimizer", cl_file!("optimizer.cl"))
    .include(&[cl_file!("common.cl")])
    .generate(rules::texts)
    .tune(&[("WG", &[256]), ("VW", &[4, 1]), ("CHUNK", &[16_384, 4096])])
    .tune_cpu(&[("WG", &[1]), ("VW", &[0]), ("CHUNK", &[8192, 32_768])]);

/// Gradients per launch: `SLOTS` of the kernel. Their pointers fit in the 1024 bytes of arguments that every device supports.
const SLOTS: usize = 32;
/// A multiple of every vector width of the kernel. If all parts of parameters start at multiples of it, whole vectors are moved.
pub const LANES: usize = 16;

/// A parameter with its own settings.
#[derive(Clone, Debug)]
pub struct Entry {
    /// A contiguous float tensor that collects a gradient.
    pub param: Tensor,
    /// Weight decay.
    pub weight_decay: f64,
    /// Factor of the learning rate.
    pub lr_scale: f64,
}

/// Function from the sums of squares of the local parameters' gradients to the sum over all devices; see [`Update::apply_with`].
pub type Total<'a> = dyn FnMut(&[f64]) -> Result<f64> + 'a;

/// Parameters with their moments, and the step over all of them.
pub struct Update {
    rule: Arc<dyn Rule>,
    entries: Vec<Entry>,
    arenas: Vec<Arena>,
    control: Control,
    /// Maximum norm of the last [`Update::set`].
    max_norm: Option<f64>,
    plan: Option<UpdatePlan>,
    /// Sum of squares of all gradients, one f32, if other devices have some of the gradients.
    squares: Option<Tensor>,
    /// Whether master weights follow parameters that are written between steps.
    follows: bool,
}

impl Update {
    /// Builds an update over these parameters. Moments start at zero. Master weights are copied from the parameters at the first step. Before a
    /// later step, those of parameters that were written outside of steps are copied again.
    ///
    /// # Errors
    /// `Shape` or `DType` for a parameter that is not contiguous floats or occurs twice; `Format` for an invalid hyperparameter;
    /// `Memory`.
    pub fn new(rule: Arc<dyn Rule>, entries: Vec<Entry>, scale: Option<LossScale>) -> Result<Self> {
        let Some(first) = entries.first() else {
            return Err(Error::shape("optimizer: expected at least one parameter"));
        };
        rule.kind().check(&rule.values())?;
        let device = first.param.device().clone();
        let _tag = device.tag("optimizer");
        let arenas = Arena::over(&entries, rule.state().len())?;
        let control = Control::new(&device, scale)?;
        Ok(Self { rule, entries, arenas, control, max_norm: None, plan: None, squares: None, follows: true })
    }

    /// Changes hyperparameters, and weight decay and learning rate factor of each entry, in their order. State is kept.
    ///
    /// # Errors
    /// `Format` for an invalid hyperparameter, for a rule of another kind or with other state, and for another number of entries. Nothing
    /// has changed in this case.
    pub fn reconfigure(&mut self, rule: Arc<dyn Rule>, factors: &[(f64, f64)]) -> Result<()> {
        rule.kind().check(&rule.values())?;
        if rule.kind().name != self.rule.kind().name || rule.state() != self.rule.state() {
            return Err(Error::format("optimizer: the new rule keeps other state"));
        }
        if factors.len() != self.entries.len() {
            return Err(Error::format(format!(
                "optimizer: got factors of {} parameters, expected {}",
                factors.len(),
                self.entries.len()
            )));
        }
        for (entry, (weight_decay, lr_scale)) in self.entries.iter_mut().zip(factors) {
            if (entry.weight_decay, entry.lr_scale) != (*weight_decay, *lr_scale) {
                (entry.weight_decay, entry.lr_scale) = (*weight_decay, *lr_scale);
                self.plan = None;
            }
        }
        self.rule = rule;
        Ok(())
    }

    /// Returns the rule.
    pub fn rule(&self) -> &dyn Rule {
        &*self.rule
    }
    /// Returns the parameters in their given order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Enqueues one step from the gradients that the parameters have accumulated, and returns.
    ///
    /// `max_norm`: gradients are scaled down so that their common norm is at most this, as in PyTorch's `clip_grad_norm_`. 0 or infinity only
    /// measures the norm; `None` does not measure it.
    ///
    /// # Errors
    /// `Shape` that names a parameter without a gradient or with one of a different shape. Nothing has changed in this case.
    pub fn step(&mut self, lr: f64, max_norm: Option<f64>) -> Result<()> {
        self.entries.iter().try_for_each(|e| collected(&e.param).map(|_| ()))?;
        self.set(lr, max_norm)?;
        self.apply()?;
        self.control.count();
        Ok(())
    }

    /// Does the host's part of [`Update::step`]: writes learning rate and largest norm to the device.
    ///
    /// # Errors
    /// Errors of the upload.
    pub fn set(&mut self, lr: f64, max_norm: Option<f64>) -> Result<()> {
        self.max_norm = max_norm;
        self.follow_parameters()?;
        self.control.set(lr, max_norm)
    }

    /// Does the device's part of [`Update::step`] with the values in its memory. A captured step contains only this part. Call [`Update::count`]
    /// each time it was enqueued.
    ///
    /// # Errors
    /// `Shape` like [`Update::step`].
    pub fn apply(&mut self) -> Result<()> {
        let grads = self.gradients()?;
        let device = self.entries[0].param.device().clone();
        let _tag = device.tag("optimizer");
        let plan = self.ready(&device, &grads)?;
        let parts = if self.measures() { self.norms(&plan, &grads)? } else { 0 };
        self.change(&plan, &grads, (&plan.partial, parts))?;
        self.plan = Some(plan);
        Ok(())
    }

    /// Does the same if other devices have other parameters of the same model. `total` gets the sum of squares of the gradient of each local
    /// parameter, in order, and returns the sum over all parameters of all devices. Clipping and the decision to skip use that sum. The function
    /// waits for the gradients, so it cannot be captured.
    ///
    /// # Errors
    /// Errors of [`Update::apply`] and of `total`.
    pub fn apply_with(&mut self, total: &mut Total<'_>) -> Result<()> {
        if !self.measures() {
            return self.apply();
        }
        let grads = self.gradients()?;
        let device = self.entries[0].param.device().clone();
        let _tag = device.tag("optimizer");
        let plan = self.ready(&device, &grads)?;
        self.norms(&plan, &grads)?;
        let sum = total(&plan.sums(self.entries.len())?)?;
        self.set_squares(sum)?;
        let all = self.total()?;
        self.change(&plan, &grads, (&all, 1))?;
        self.plan = Some(plan);
        Ok(())
    }

    /// Sums the squares of these gradients: the first part of [`Update::apply`], if other devices update other parameters of the model.
    /// [`Update::squares`] reads the sum, and [`Update::set_squares`] writes that of all gradients. [`Update::apply_measured`] does the rest.
    ///
    /// # Errors
    /// `Shape` like [`Update::step`].
    pub fn measure(&mut self) -> Result<()> {
        let grads = self.gradients()?;
        let device = self.entries[0].param.device().clone();
        let _tag = device.tag("optimizer");
        let plan = self.ready(&device, &grads)?;
        self.norms(&plan, &grads)?;
        self.plan = Some(plan);
        Ok(())
    }

    /// Returns the sum of squares of the gradients that were last [measured](Update::measure). Waits for it.
    ///
    /// # Errors
    /// `Internal` if nothing was measured; errors of the device.
    pub fn squares(&self) -> Result<f64> {
        let plan = self.plan.as_ref().ok_or_else(|| Error::internal("optimizer: nothing was measured"))?;
        Ok(plan.partial.to_vec()?.iter().map(|sum| f64::from(*sum)).sum())
    }

    /// Writes the sum of squares of all gradients, including those of other devices, for [`Update::apply_measured`].
    ///
    /// # Errors
    /// Errors of the upload.
    pub fn set_squares(&mut self, sum: f64) -> Result<()> {
        self.total()?.set_f32(&[sum as f32])
    }

    /// Does the second part of [`Update::apply`], after [`Update::measure`], with the norm from [`Update::set_squares`].
    ///
    /// # Errors
    /// `Shape` like [`Update::step`].
    pub fn apply_measured(&mut self) -> Result<()> {
        let grads = self.gradients()?;
        let device = self.entries[0].param.device().clone();
        let _tag = device.tag("optimizer");
        let plan = self.ready(&device, &grads)?;
        let total = self.total()?;
        self.change(&plan, &grads, (&total, usize::from(self.measures())))?;
        self.plan = Some(plan);
        Ok(())
    }

    fn gradients(&self) -> Result<Vec<Tensor>> {
        self.entries.iter().map(|e| gradient(&e.param)).collect()
    }

    fn measures(&self) -> bool {
        self.max_norm.is_some() || self.control.scales()
    }

    fn total(&mut self) -> Result<Tensor> {
        let device = self.entries[0].param.device().clone();
        if let Some(total) = &self.squares {
            return Ok(total.clone());
        }
        let made = device.outside_capture(|| Tensor::zeros(&device, [1], DType::F32))?;
        Ok(self.squares.insert(made).clone())
    }

    /// Computes sums of squares of the gradients, one per work-group, and returns their number.
    fn norms(&self, plan: &UpdatePlan, grads: &[Tensor]) -> Result<usize> {
        plan.batches.iter().try_for_each(|batch| self.norm(plan, batch, grads))?;
        Ok(plan.batches.iter().map(|batch| batch.groups).sum())
    }

    /// Enqueues the step, with a norm whose square is the sum of `parts` numbers.
    fn change(
        &mut self,
        plan: &UpdatePlan,
        grads: &[Tensor],
        (squares, parts): (&Tensor, usize),
    ) -> Result<()> {
        if let Some(batch) = plan.batches.first() {
            self.prepare(plan, batch, (squares, parts))?;
        }
        plan.batches.iter().try_for_each(|batch| self.update(plan, batch, grads))?;
        self.arenas.iter_mut().for_each(|arena| arena.note(&self.entries));
        Ok(())
    }

    fn follow_parameters(&mut self) -> Result<()> {
        if !self.follows {
            return Ok(());
        }
        self.arenas.iter_mut().try_for_each(|arena| arena.follow(&self.entries))
    }

    /// Declares that only steps and [`Update::take_master`] change the parameters, so that steps do not check for other writes. Use this if ranks
    /// exchange parameters, since these writes look like any other writes.
    pub fn owns_parameters(&mut self) {
        self.follows = false;
    }

    /// Prepares state that persists between steps: master weights copied from the parameters, and the plan for these gradients. It runs immediately
    /// even during capture. The next step then finds it done, whether or not the captured step ever runs.
    fn ready(&mut self, device: &Device, grads: &[Tensor]) -> Result<UpdatePlan> {
        device.outside_capture(|| {
            self.follow_parameters()?;
            self.arenas.iter_mut().try_for_each(Arena::lead)?;
            UpdatePlan::renew(self.plan.take(), &self.entries, &self.arenas, grads)
        })
    }

    /// Prepares the state of steps except moments, from gradients of the types of later steps. Changes no parameter.
    ///
    /// # Errors
    /// Errors of [`Update::step`].
    pub fn prepare_plan(&mut self) -> Result<()> {
        let grads = self.gradients()?;
        let device = self.entries[0].param.device().clone();
        let _tag = device.tag("optimizer");
        self.plan = Some(self.ready(&device, &grads)?);
        Ok(())
    }

    /// Records that a step was enqueued. The next [`Update::report`] refers to it.
    pub fn count(&self) {
        self.control.count();
    }

    /// Computes the gradients of `loss`, multiplied by the loss scale if there is one; a step divides them by it again.
    pub fn backward(&self, loss: &Tensor) -> Result<()> {
        if !self.control.scales() {
            return loss.backward();
        }
        // A copy: a step changes the scale while gradients may still share its memory.
        loss.backward_with(&map("x0", &[&self.control.scale()], &[], loss.shape(), loss.dtype())?)
    }

    /// Returns a report of the last step, which can be read when the step is done.
    pub fn report(&self) -> Result<Report> {
        self.control.report()
    }
    /// Returns the steps done and the state of the loss scale. Waits for the device.
    pub fn counters(&self) -> Result<Counters> {
        self.control.counters()
    }
    /// Sets the values that [`Update::counters`] returns.
    pub fn set_counters(&mut self, counters: Counters) -> Result<()> {
        self.control.set_counters(counters)
    }
    /// Returns the moments of parameter `i` and its master weights, if it has them, by name: f32 windows of its shape.
    pub fn state(&self, i: usize) -> Result<Vec<(&'static str, Tensor)>> {
        let arena = self.arenas.iter().find(|a| a.members.contains(&i));
        let arena = arena.ok_or_else(|| Error::internal(format!("optimizer: no parameter {i}")))?;
        arena.state(&self.entries[i].param, self.rule.state())
    }
    /// Returns the bytes of moments and master weights.
    pub fn state_bytes(&self) -> usize {
        self.arenas.iter().map(Arena::state_bytes).sum()
    }
    /// Sets whether the next step first copies the master weights from the parameters: true after parameters were overwritten, false after
    /// [`Update::state`] was.
    pub fn take_master(&mut self, from_parameters: bool) {
        for arena in &mut self.arenas {
            arena.stale = from_parameters;
            arena.note(&self.entries);
        }
    }

    fn launch(&self, entry: &'static str, plan: &UpdatePlan, batch: &ParameterBatch) -> Launch<'static> {
        let launch = KERNEL.launch(entry).define("CHUNK", plan.chunk).define("GTYPE", batch.dtype.code());
        let launch = launch.define("ALIGNED", batch.aligned);
        let launch = launch.define("DTYPE", self.arenas[batch.arena].dtype.code());
        let launch = launch.define("RULE", rules::number(self.rule.kind()));
        let launch = launch.define("STATES", self.rule.state().len());
        self.rule.defines().into_iter().fold(launch, |launch, (name, on)| launch.define(name, on))
    }

    fn norm(&self, plan: &UpdatePlan, batch: &ParameterBatch, grads: &[Tensor]) -> Result<()> {
        let launch = self.launch("optimizer_norm", plan, batch).groups(batch.groups);
        let launch = launch.write(&plan.partial).scalar(batch.part);
        batch.gradients(launch, plan, grads).flops(2 * batch.elements as u64).run()
    }

    fn prepare(
        &self,
        plan: &UpdatePlan,
        batch: &ParameterBatch,
        (squares, parts): (&Tensor, usize),
    ) -> Result<()> {
        let [log1, log2] = self.rule.averages().map(|b| b.ln() as f32);
        let launch = self.launch("optimizer_prepare", plan, batch).groups(1).write(&self.control.memory);
        launch.read(squares).scalar(parts).scalar(log1).scalar(log2).scalar(self.control.growth()).run()
    }

    fn update(&self, plan: &UpdatePlan, batch: &ParameterBatch, grads: &[Tensor]) -> Result<()> {
        let arena = &self.arenas[batch.arena];
        let launch = self.launch("optimizer_update", plan, batch).groups(batch.groups);
        let launch = batch.changes(launch, &self.entries);
        let mut launch = arena.bind(launch, batch.elements).read(&self.control.memory);
        for value in self.rule.scalars() {
            launch = launch.scalar(value as f32);
        }
        batch.gradients(launch, plan, grads).flops(12 * batch.elements as u64).run()
    }
}

/// Returns the accumulated gradient of a parameter, contiguous.
fn gradient(param: &Tensor) -> Result<Tensor> {
    let grad = collected(param)?;
    if grad.is_contiguous() { Ok(grad) } else { grad.detach().contiguous() }
}

/// Returns the accumulated gradient of a parameter, if a step can use it.
fn collected(param: &Tensor) -> Result<Tensor> {
    let name = param.name().unwrap_or("unnamed parameter");
    let grad = param.grad().ok_or_else(|| {
        Error::shape(format!(
            "optimizer: {name} {} does not have a gradient: the loss does not depend on it, or backward has not run; leave it out of \
             the groups if it is not to be trained",
            param.shape()
        ))
    })?;
    if grad.shape() != param.shape() {
        return Err(Error::shape(format!(
            "optimizer: the gradient of {name} has shape {}, expected {}",
            grad.shape(),
            param.shape()
        )));
    }
    check::float("optimizer", "a gradient", &grad)?;
    Ok(grad)
}
