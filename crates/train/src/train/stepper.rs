//! Execution of repeated steps: launched one by one at first, then replayed from a captured graph.

use crate::config::GraphMode;
use netcl_tensor::graph::{Between, BufferPlan, Graph, Trace};
use netcl_tensor::tape::Rollback;
use netcl_tensor::{Device, ErrorKind, Result, Tensor, unfused};

/// Executes steps and captures one as a graph after all its kernels were launched once.
///
/// A step is a closure that enqueues all work from the inputs to the update and returns the loss. It can also be a repeated part of a step: forward
/// and backward of a micro-batch, or the update. Values that change from step to step must be in device memory that was allocated before, and the
/// caller must have written them.
///
/// If a step fails, captured or not, gradients are restored to what they were before it.
///
/// The stepper is a state machine. [`Stepper::run`] executes a step and advances it; the other two prepare the first step:
///
/// | state | [`run`](Stepper::run) | [`dry_run`](Stepper::dry_run) | [`prepare`](Stepper::prepare) |
/// | --- | --- | --- | --- |
/// | cold: no step has run | launches the step → warm | plans its memory → planned | |
/// | warm: kernels are compiled | launches and records the step, plans its memory → planned; without plans captures and replays it → captured | | |
/// | planned | captures and replays the step → captured | | captures the step → captured; without memory for it → cold |
/// | captured | replays the step | | |
/// | eager | launches the step | | |
///
/// If a step cannot be captured, or a launched step fails, the next state is eager. With [`GraphMode::Off`] the first state is eager.
pub struct Stepper {
    device: Device,
    mode: GraphMode,
    state: State,
    /// Whether buffer addresses are planned.
    plans: bool,
    /// Why steps are not captured, if capturing was tried.
    given_up: Option<String>,
}

enum State {
    /// No step has run yet.
    Cold,
    /// One step has run: its kernels are compiled.
    Warm,
    /// The memory of a step is planned.
    Planned(BufferPlan),
    /// Steps are replayed.
    Captured(Captured),
    /// Steps are not captured.
    Eager,
}

/// A step as a graph.
struct Captured {
    graph: Graph,
    loss: Tensor,
    plan: Option<BufferPlan>,
}

impl Stepper {
    /// Creates a stepper for `device`.
    pub fn new(device: &Device, mode: GraphMode) -> Self {
        let state = if mode == GraphMode::Off { State::Eager } else { State::Cold };
        Self { device: device.clone(), mode, state, plans: true, given_up: None }
    }

    /// Does the same for a step that allocates hardly any buffers: memory is not planned, and the step is captured one step earlier.
    pub fn without_plan(device: &Device, mode: GraphMode) -> Self {
        Self { plans: false, ..Self::new(device, mode) }
    }

    /// Returns the graph mode it was created with.
    pub fn mode(&self) -> GraphMode {
        self.mode
    }

    /// Stops capturing: later steps are launched one by one.
    ///
    /// # Errors
    /// `why`, with [`GraphMode::On`].
    pub fn stay_eager(&mut self, why: netcl_tensor::Error) -> Result<()> {
        self.state = State::Eager;
        self.give_up(why).map(drop)
    }

    /// Returns whether steps are replayed from a graph.
    pub fn is_captured(&self) -> bool {
        matches!(self.state, State::Captured(_))
    }

    /// Returns whether steps are not captured, so that inputs need not keep their addresses.
    pub fn is_eager(&self) -> bool {
        matches!(self.state, State::Eager)
    }

    /// Returns the memory plan of the captured step.
    pub fn plan(&self) -> Option<&BufferPlan> {
        if let State::Captured(captured) = &self.state { captured.plan.as_ref() } else { None }
    }

    /// Returns the first command of a replay that accesses the memory of `x`, a tensor from before the step; `None` without one, or if steps are
    /// not replayed. See [`Graph::first_use`].
    pub fn first_use(&self, x: &Tensor) -> Option<usize> {
        if let State::Captured(captured) = &self.state { captured.graph.first_use(x) } else { None }
    }

    /// Returns the last command of a replay that writes the tensor `x` from before the step; `None` without one, or if steps are not replayed.
    pub fn last_write(&self, x: &Tensor) -> Option<usize> {
        if let State::Captured(captured) = &self.state { captured.graph.last_write(x) } else { None }
    }

    /// Returns whether the next step is captured; [`Stepper::prepare`] captures it earlier.
    pub fn is_planned(&self) -> bool {
        matches!(self.state, State::Planned(_))
    }

    /// Returns why [`plan`](Self::plan) is `None`; `None` if it is not.
    pub fn why_no_plan(&self) -> Option<String> {
        Some(match &self.state {
            State::Captured(Captured { plan: Some(_), .. }) => return None,
            State::Captured(_) if self.device.settings().exact_memory => {
                "each buffer has separate memory, as checks of accesses require (NETCL_EXACT_MEMORY)".into()
            }
            State::Captured(_) => "the memory of the captured step was not planned".into(),
            State::Eager if self.mode == GraphMode::Off => {
                "with --graph off no step is captured, and only the memory of a captured step is planned"
                    .into()
            }
            State::Eager => match &self.given_up {
                Some(why) => format!("no step could be captured: {why}"),
                None => "no step could be captured".into(),
            },
            State::Cold | State::Warm | State::Planned(_) => {
                "no step was captured: the first steps run eagerly".into()
            }
        })
    }

    /// Returns the number of launches and of other commands in a replay.
    pub fn commands(&self) -> Option<(usize, usize)> {
        if let State::Captured(captured) = &self.state { Some(captured.graph.commands()) } else { None }
    }

    /// Plans the memory of `step` with a dry run before the first one, so that no step exceeds the plan. `warm` allocates what outlives a step. If
    /// planning is not possible, the first steps run without a plan.
    ///
    /// # Errors
    /// `Memory` if `warm` cannot allocate, or the step needs a larger buffer than the device supports.
    pub fn dry_run(
        &mut self,
        warm: impl FnOnce() -> Result<()>,
        step: impl FnOnce() -> Result<Tensor>,
    ) -> Result<()> {
        if !matches!(self.state, State::Cold) || !self.plans || self.device.settings().exact_memory {
            return Ok(());
        }
        let traced = warm().and_then(|()| unfused(|| Trace::dry_run(&self.device, step)));
        if let Err(e) = &traced
            && e.kind() == ErrorKind::Memory
        {
            return Err(e.clone());
        }
        match traced.and_then(|trace| BufferPlan::new(&self.device, &trace)) {
            Ok(plan) => self.state = State::Planned(plan),
            Err(e) => tracing::debug!("the first step runs without a plan: {e}"),
        }
        Ok(())
    }

    /// Captures the step that [`Stepper::dry_run`] has planned, and enqueues nothing. Ranks that must agree on it thus learn whether memory suffices.
    /// If it does not, the next step is the first one again; without a plan, this does nothing.
    ///
    /// # Errors
    /// `Memory`; the next step reports other errors.
    pub fn prepare(&mut self, step: impl FnMut() -> Result<Tensor>) -> Result<()> {
        let state = std::mem::replace(&mut self.state, State::Eager);
        let State::Planned(plan) = state else {
            self.state = state;
            return Ok(());
        };
        let gradients = Rollback::start();
        match unfused(|| Graph::planned(&self.device, &plan, step)) {
            Ok((graph, loss)) => {
                gradients.accept();
                self.state = State::Captured(Captured { graph, loss, plan: Some(plan) });
                Ok(())
            }
            Err(e) if e.kind() == ErrorKind::Memory => {
                self.state = State::Cold;
                Err(e)
            }
            Err(_) => {
                self.state = State::Planned(plan);
                Ok(())
            }
        }
    }

    /// Returns whether a [`Stepper::dry_run`] is useful: no step has run yet.
    pub fn is_cold(&self) -> bool {
        matches!(self.state, State::Cold)
    }

    /// Enqueues one step and returns its loss, which the next step may overwrite.
    ///
    /// # Errors
    /// Errors of the step; with [`GraphMode::On`] also the reason why it cannot be captured.
    pub fn run(&mut self, step: impl FnMut() -> Result<Tensor>) -> Result<Tensor> {
        self.run_between(
            step,
            &mut Between { uses: &[], before: &mut |_| Ok(()), parts: &[], done: &mut |_| Ok(()) },
        )
    }

    /// Does the same between calls. `between.done(i)` comes as soon as all writes to `parts[i]` are enqueued, in their order: within the step if it
    /// is replayed, otherwise after it. `between.before(i)` comes before command `uses[i]` of a replay (see [`Stepper::first_use`]); a step that is
    /// not replayed makes all these calls before it begins. See [`Between`].
    ///
    /// # Errors
    /// Errors of [`Stepper::run`]; those of the calls.
    pub fn run_between(
        &mut self,
        mut step: impl FnMut() -> Result<Tensor>,
        between: &mut Between<'_>,
    ) -> Result<Tensor> {
        let Between { uses, before, parts, done } = between;
        let mut uses = *uses;
        if !self.is_captured() {
            (0..uses.len()).try_for_each(&mut **before)?;
            uses = &[];
        }
        // Gradients of an incomplete step must not be added to those of the next.
        let gradients = Rollback::start();
        let out = self.advance(&mut step, Between { uses, before: &mut **before, parts, done: &mut **done });
        if out.is_ok() {
            gradients.accept();
        }
        out
    }

    /// Executes a step and advances to the next state.
    fn advance(
        &mut self,
        step: &mut impl FnMut() -> Result<Tensor>,
        mut between: Between<'_>,
    ) -> Result<Tensor> {
        // Memory checkers need every buffer to be a separate allocation.
        let plans = self.plans && !self.device.settings().exact_memory;
        // A step that fails leaves the state eager.
        let (next, loss) = match std::mem::replace(&mut self.state, State::Eager) {
            State::Eager => (State::Eager, step()?),
            State::Cold => (State::Warm, step()?),
            State::Warm if plans => {
                let (trace, loss) = unfused(|| Trace::of(&self.device, &mut *step))?;
                match BufferPlan::new(&self.device, &trace) {
                    Ok(plan) => (State::Planned(plan), loss),
                    Err(e) => (self.give_up(e)?, loss),
                }
            }
            state @ (State::Warm | State::Planned(_)) => match self.capture(state, step) {
                Ok(captured) => return self.replay(captured, &mut between),
                Err(e) => (self.give_up(e)?, step()?),
            },
            State::Captured(captured) => return self.replay(captured, &mut between),
        };
        self.state = next;
        (0..between.parts.len()).try_for_each(between.done)?;
        Ok(loss)
    }

    /// Returns the step as a graph; in the planned state, with its plan.
    fn capture(&self, state: State, step: &mut impl FnMut() -> Result<Tensor>) -> Result<Captured> {
        // Eager and replayed steps have the same bits, so that runs can be resumed anywhere.
        let plan = if let State::Planned(plan) = state { Some(plan) } else { None };
        let (graph, loss) = unfused(|| match &plan {
            Some(plan) => Graph::planned(&self.device, plan, &mut *step),
            None => Graph::capture(&self.device, &mut *step),
        })?;
        let (launches, others) = graph.commands();
        tracing::debug!("captured a step: {launches} launches, {others} fills, copies and uploads");
        Ok(Captured { graph, loss, plan })
    }

    /// Replays a step. The graph is kept even if that fails, because its buffers may be in use.
    fn replay(&mut self, captured: Captured, between: &mut Between<'_>) -> Result<Tensor> {
        let (outcome, loss) = (captured.graph.replay_between(between), captured.loss.clone());
        self.state = State::Captured(captured);
        outcome.map(|()| loss)
    }

    /// Returns the state if steps cannot be captured; an error with [`GraphMode::On`].
    fn give_up(&mut self, why: netcl_tensor::Error) -> Result<State> {
        if self.mode == GraphMode::On {
            return Err(why.context("--graph on"));
        }
        tracing::warn!("steps are not replayed from a graph: {why}");
        self.given_up = Some(why.to_string());
        Ok(State::Eager)
    }
}
