//! Optimizers over all parameters at once, with the gradients' norm, clipping and loss scaling on the device.
//!
//! Not an op of the tape: a step changes parameters in place. Parameters that are parts of one buffer are updated by one
//! launch for every 32 of them; moments and f32 master weights of f16 and bf16 parameters are flat buffers beside it. What
//! changes from step to step lives in a small device buffer, so a step never waits and compiles nothing after the first.

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
use plan::{Batch, Plan};
pub use rules::{Adam, AdamW, Hyper, KINDS, Kind, Lion, Rule, Sgd, Step};
use std::sync::Arc;
pub use suite::ENTRY;

static KERNEL: Kernel = Kernel::new("optimizer", cl_file!("optimizer.cl"))
    .include(&[cl_file!("common.cl")])
    .generate(rules::texts)
    .tune(&[("WG", &[256]), ("VW", &[4, 1]), ("CHUNK", &[16_384, 4096])])
    .tune_cpu(&[("WG", &[1]), ("VW", &[0]), ("CHUNK", &[8192, 32_768])]);

/// Gradients a launch takes: `SLOTS` of the kernel text. Their pointers fit the 1024 bytes of arguments every device has.
const SLOTS: usize = 32;
/// Elements that every vector width of the kernel divides: where all parts of parameters begin at such, whole vectors are moved.
pub const LANES: usize = 16;

/// A parameter and what is particular to it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// A contiguous float tensor that collects a gradient.
    pub param: Tensor,
    /// Weight decay.
    pub weight_decay: f64,
    /// Factor on the learning rate.
    pub lr_scale: f64,
}

/// From sums of squares of the gradients of parameters here to that of all devices; see [`Update::apply_with`].
pub type Total<'a> = dyn FnMut(&[f64]) -> Result<f64> + 'a;

/// Parameters with their moments, and the step over all of them.
pub struct Update {
    rule: Arc<dyn Rule>,
    entries: Vec<Entry>,
    arenas: Vec<Arena>,
    control: Control,
    /// Of the last [`Update::set`].
    max_norm: Option<f64>,
    plan: Option<Plan>,
    /// The sum of squares of all gradients, where others have some of them: one f32.
    squares: Option<Tensor>,
    /// Whether master weights follow parameters that are written between steps.
    follows: bool,
}

impl Update {
    /// Moments start at zero. Master weights are taken from the parameters at the first step, and from those that anything else than a step
    /// has written since, before the next step.
    ///
    /// # Errors
    /// `Shape` or `DType` for a parameter that is not contiguous floats or occurs twice; `Format` for a hyperparameter out of its bounds;
    /// `Memory`.
    pub fn new(rule: Arc<dyn Rule>, entries: Vec<Entry>, scale: Option<LossScale>) -> Result<Self> {
        let Some(first) = entries.first() else {
            return Err(Error::shape("optimizer: there are no parameters to update"));
        };
        rule.kind().check(&rule.values())?;
        let device = first.param.device().clone();
        let _tag = device.tag("optimizer");
        let arenas = Arena::over(&entries, rule.state().len())?;
        let control = Control::new(&device, scale)?;
        Ok(Self { rule, entries, arenas, control, max_norm: None, plan: None, squares: None, follows: true })
    }

    /// The rule.
    pub fn rule(&self) -> &dyn Rule {
        &*self.rule
    }
    /// The parameters, in the order they were given.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// One step from the gradients that the parameters have collected. Enqueues and returns.
    ///
    /// `max_norm`: gradients are scaled down so that the norm of all of them together is at most this, as PyTorch's
    /// `clip_grad_norm_` does it; 0 or infinity only measures the norm; `None` leaves it out.
    ///
    /// # Errors
    /// `Shape` that names a parameter without gradient or with one of another shape; nothing has changed then.
    pub fn step(&mut self, lr: f64, max_norm: Option<f64>) -> Result<()> {
        self.entries.iter().try_for_each(|e| collected(&e.param).map(|_| ()))?;
        self.set(lr, max_norm)?;
        self.apply()?;
        self.control.count();
        Ok(())
    }

    /// The part of [`Update::step`] that the host does: writes learning rate and largest norm where the device reads them.
    ///
    /// # Errors
    /// Whatever the upload answers.
    pub fn set(&mut self, lr: f64, max_norm: Option<f64>) -> Result<()> {
        self.max_norm = max_norm;
        self.follow_parameters()?;
        self.control.set(lr, max_norm)
    }

    /// The part of [`Update::step`] that the device does, from what is in its memory: a captured step holds this alone. Say
    /// [`Update::count`] for each time it was enqueued.
    ///
    /// # Errors
    /// `Shape` as [`Update::step`].
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

    /// The same where other devices have other parameters of the same model: `total` gets, for each parameter here in order, the sum of the
    /// squares of its gradient, and gives that of all parameters of all devices. Clipping and the decision to skip follow it. Waits for
    /// the gradients, so it cannot be captured.
    ///
    /// # Errors
    /// As [`Update::apply`]; those of `total`.
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

    /// The first part of [`Update::apply`] where others update other parameters of the model: sums the squares of these gradients.
    /// [`Update::squares`] reads the sum, [`Update::set_squares`] writes that of all gradients, and [`Update::apply_measured`] does the rest.
    ///
    /// # Errors
    /// `Shape` as [`Update::step`].
    pub fn measure(&mut self) -> Result<()> {
        let grads = self.gradients()?;
        let device = self.entries[0].param.device().clone();
        let _tag = device.tag("optimizer");
        let plan = self.ready(&device, &grads)?;
        self.norms(&plan, &grads)?;
        self.plan = Some(plan);
        Ok(())
    }

    /// The sum of squares of the gradients that were [measured](Update::measure) last. Waits for it.
    ///
    /// # Errors
    /// `Internal` where nothing was measured; the device's.
    pub fn squares(&self) -> Result<f64> {
        let plan = self.plan.as_ref().ok_or_else(|| Error::internal("optimizer: nothing was measured"))?;
        Ok(plan.partial.to_vec()?.iter().map(|sum| f64::from(*sum)).sum())
    }

    /// Writes the sum of squares of all gradients, those of others too, for [`Update::apply_measured`].
    ///
    /// # Errors
    /// Whatever the upload answers.
    pub fn set_squares(&mut self, sum: f64) -> Result<()> {
        self.total()?.set_f32(&[sum as f32])
    }

    /// The second part of [`Update::apply`], after [`Update::measure`]: with the norm that [`Update::set_squares`] gave.
    ///
    /// # Errors
    /// `Shape` as [`Update::step`].
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

    /// Sums of squares of the gradients, one a work-group; how many there are.
    fn norms(&self, plan: &Plan, grads: &[Tensor]) -> Result<usize> {
        plan.batches.iter().try_for_each(|batch| self.norm(plan, batch, grads))?;
        Ok(plan.batches.iter().map(|batch| batch.groups).sum())
    }

    /// The step, with a norm whose square is the sum of `parts` numbers.
    fn change(&mut self, plan: &Plan, grads: &[Tensor], (squares, parts): (&Tensor, usize)) -> Result<()> {
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

    /// Says that nothing but steps and [`Update::take_master`] changes parameters: steps do not look for other writes. Ranks that exchange
    /// parameters write them by the same commands as anybody.
    pub fn owns_parameters(&mut self) {
        self.follows = false;
    }

    /// What outlives a step: master weights taken from the parameters, and the plan for these gradients. Made now even where the step
    /// is only captured: the next step finds it done, whether or not the captured one ever runs.
    fn ready(&mut self, device: &Device, grads: &[Tensor]) -> Result<Plan> {
        device.outside_capture(|| {
            self.follow_parameters()?;
            self.arenas.iter_mut().try_for_each(Arena::lead)?;
            Plan::renew(self.plan.take(), &self.entries, &self.arenas, grads)
        })
    }

    /// Makes what steps keep besides moments, from gradients of the types that steps will have; changes no parameter.
    ///
    /// # Errors
    /// As [`Update::step`].
    pub fn prepare_plan(&mut self) -> Result<()> {
        let grads = self.gradients()?;
        let device = self.entries[0].param.device().clone();
        let _tag = device.tag("optimizer");
        self.plan = Some(self.ready(&device, &grads)?);
        Ok(())
    }

    /// A step was enqueued: the next [`Update::report`] is its.
    pub fn count(&self) {
        self.control.count();
    }

    /// Gradients of `loss`, multiplied by the loss scale where there is one; a step divides them by it again.
    pub fn backward(&self, loss: &Tensor) -> Result<()> {
        if !self.control.scales() {
            return loss.backward();
        }
        // A copy: a step changes the scale while gradients may still share the memory of this one.
        loss.backward_with(&map("x0", &[&self.control.scale()], &[], loss.shape(), loss.dtype())?)
    }

    /// What the last step did, to be read when it is done.
    pub fn report(&self) -> Result<Report> {
        self.control.report()
    }
    /// Steps done and the loss scale's state. Waits for the device.
    pub fn counters(&self) -> Result<Counters> {
        self.control.counters()
    }
    /// Sets what [`Update::counters`] gives.
    pub fn set_counters(&mut self, counters: Counters) -> Result<()> {
        self.control.set_counters(counters)
    }
    /// The moments of parameter `i` and, where it has them, its master weights, by name: windows of its shape, f32.
    pub fn state(&self, i: usize) -> Result<Vec<(&'static str, Tensor)>> {
        let arena = self.arenas.iter().find(|a| a.members.contains(&i));
        let arena = arena.ok_or_else(|| Error::internal(format!("optimizer: no parameter {i}")))?;
        arena.state(&self.entries[i].param, self.rule.state())
    }
    /// Bytes of moments and master weights.
    pub fn state_bytes(&self) -> usize {
        self.arenas.iter().map(Arena::state_bytes).sum()
    }
    /// Says whether the next step first takes the master weights from the parameters: true after parameters were
    /// overwritten, false after [`Update::state`] was.
    pub fn take_master(&mut self, from_parameters: bool) {
        for arena in &mut self.arenas {
            arena.stale = from_parameters;
            arena.note(&self.entries);
        }
    }

    fn launch(&self, entry: &'static str, plan: &Plan, batch: &Batch) -> Launch<'static> {
        let launch = KERNEL.launch(entry).define("CHUNK", plan.chunk).define("GTYPE", batch.dtype.code());
        let launch = launch.define("ALIGNED", batch.aligned);
        let launch = launch.define("DTYPE", self.arenas[batch.arena].dtype.code());
        let launch = launch.define("RULE", rules::number(self.rule.kind()));
        let launch = launch.define("STATES", self.rule.state().len());
        self.rule.defines().into_iter().fold(launch, |launch, (name, on)| launch.define(name, on))
    }

    fn norm(&self, plan: &Plan, batch: &Batch, grads: &[Tensor]) -> Result<()> {
        let launch = self.launch("optimizer_norm", plan, batch).groups(batch.groups);
        let launch = launch.write(&plan.partial).scalar(batch.part);
        batch.gradients(launch, plan, grads).flops(2 * batch.elements as u64).run()
    }

    fn prepare(&self, plan: &Plan, batch: &Batch, (squares, parts): (&Tensor, usize)) -> Result<()> {
        let [log1, log2] = self.rule.averages().map(|b| b.ln() as f32);
        let launch = self.launch("optimizer_prepare", plan, batch).groups(1).write(&self.control.memory);
        launch.read(squares).scalar(parts).scalar(log1).scalar(log2).scalar(self.control.growth()).run()
    }

    fn update(&self, plan: &Plan, batch: &Batch, grads: &[Tensor]) -> Result<()> {
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

/// The collected gradient of a parameter, without gaps.
fn gradient(param: &Tensor) -> Result<Tensor> {
    let grad = collected(param)?;
    if grad.is_contiguous() { Ok(grad) } else { grad.detach().contiguous() }
}

/// The collected gradient of a parameter, if it is one that a step takes.
fn collected(param: &Tensor) -> Result<Tensor> {
    let name = param.name().unwrap_or("a parameter without name");
    let grad = param.grad().ok_or_else(|| {
        Error::shape(format!(
            "optimizer: {name} {} has no gradient: the loss does not depend on it, or backward has not run; leave it out of \
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
