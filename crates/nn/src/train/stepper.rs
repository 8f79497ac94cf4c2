//! Steps that come as they come at first, and from a captured graph as soon as there is one.

use crate::config::GraphMode;
use netcl_tensor::graph::{Graph, Plan, Trace};
use netcl_tensor::tape::Rollback;
use netcl_tensor::{Device, Result, Tensor};

/// Runs steps, and captures one when every kernel of it has run before.
///
/// A step is a closure that enqueues everything from the inputs to the update and returns the loss, or a part of that which comes
/// again and again: forward and backward of a micro-batch, the update. It reads what changes from step to step from device memory
/// that was there before, and the caller has written that by then.
///
/// Gradients of a step that fails, captured or not, are what they were before it.
pub struct Stepper {
    device: Device,
    mode: GraphMode,
    state: State,
    /// Whether to plan where buffers lie.
    plans: bool,
}

enum State {
    /// Nothing ran yet.
    Cold,
    /// One step ran: its kernels are compiled.
    Warm,
    /// One step was noted.
    Traced(Plan),
    Captured {
        graph: Graph,
        loss: Tensor,
        plan: Option<Plan>,
    },
    /// Steps stay as they come.
    Eager,
}

impl Stepper {
    /// Steps on `device`.
    pub fn new(device: &Device, mode: GraphMode) -> Self {
        let state = if mode == GraphMode::Off { State::Eager } else { State::Cold };
        Self { device: device.clone(), mode, state, plans: true }
    }

    /// The same for a step that makes next to no buffers: nothing is planned, and it is captured one step earlier.
    pub fn without_plan(device: &Device, mode: GraphMode) -> Self {
        Self { plans: false, ..Self::new(device, mode) }
    }

    /// The mode it was made with.
    pub fn mode(&self) -> GraphMode {
        self.mode
    }

    /// Runs steps as they come from now on.
    ///
    /// # Errors
    /// With [`GraphMode::On`]: `why`.
    pub fn stay_eager(&mut self, why: netcl_tensor::Error) -> Result<()> {
        self.state = State::Eager;
        self.give_up(why)
    }

    /// Whether steps are replayed by now.
    pub fn is_captured(&self) -> bool {
        matches!(self.state, State::Captured { .. })
    }

    /// Whether the step's inputs have to stay where they are.
    pub fn is_eager(&self) -> bool {
        matches!(self.state, State::Eager)
    }

    /// Where the buffers of the captured step lie.
    pub fn plan(&self) -> Option<&Plan> {
        if let State::Captured { plan, .. } = &self.state { plan.as_ref() } else { None }
    }

    /// Launches, and other commands, of a replay.
    pub fn commands(&self) -> Option<(usize, usize)> {
        if let State::Captured { graph, .. } = &self.state { Some(graph.commands()) } else { None }
    }

    /// Plans the memory of `step` before the first one runs, so that no step takes more than the plan. `warm` has made by then
    /// whatever outlives a step. Where that cannot be, the first steps run as they come.
    pub fn dry_run(&mut self, warm: impl FnOnce() -> Result<()>, step: impl FnOnce() -> Result<Tensor>) {
        if !matches!(self.state, State::Cold) || !self.plans || self.device.settings().exact_memory {
            return;
        }
        let planned = warm().and_then(|()| Trace::dry_run(&self.device, step));
        match planned.and_then(|trace| Plan::new(&self.device, &trace)) {
            Ok(plan) => self.state = State::Traced(plan),
            Err(e) => tracing::debug!("the first step runs as it comes: {e}"),
        }
    }

    /// Whether nothing ran yet and a [`Stepper::dry_run`] would help.
    pub fn is_cold(&self) -> bool {
        matches!(self.state, State::Cold)
    }

    /// Enqueues one step; its loss, which the next step may overwrite.
    ///
    /// # Errors
    /// Those of the step; with [`GraphMode::On`] also why it cannot be captured.
    pub fn run(&mut self, mut step: impl FnMut() -> Result<Tensor>) -> Result<Tensor> {
        // Checkers of memory want every buffer to be an allocation of its own.
        let unplanned = self.device.settings().exact_memory || !self.plans;
        // Half a step leaves gradients behind that belong to no other.
        let gradients = Rollback::start();
        let out = self.advance(unplanned, &mut step);
        if out.is_ok() {
            gradients.accept();
        }
        out
    }

    fn advance(&mut self, unplanned: bool, step: &mut impl FnMut() -> Result<Tensor>) -> Result<Tensor> {
        match std::mem::replace(&mut self.state, State::Eager) {
            State::Eager => step(),
            State::Cold => {
                let loss = step()?;
                self.state = State::Warm;
                Ok(loss)
            }
            State::Warm if unplanned => self.capture(None, step),
            State::Warm => {
                let (trace, loss) = Trace::of(&self.device, &mut *step)?;
                match Plan::new(&self.device, &trace) {
                    Ok(plan) => self.state = State::Traced(plan),
                    Err(e) => self.give_up(e)?,
                }
                Ok(loss)
            }
            State::Traced(plan) => self.capture(Some(plan), step),
            State::Captured { graph, loss, plan } => {
                // The state stays captured whatever the replay says: what it holds is in use.
                let outcome = graph.replay();
                let out = loss.clone();
                self.state = State::Captured { graph, loss, plan };
                outcome.map(|()| out)
            }
        }
    }

    fn capture(&mut self, plan: Option<Plan>, step: &mut impl FnMut() -> Result<Tensor>) -> Result<Tensor> {
        let captured = match &plan {
            Some(plan) => Graph::planned(&self.device, plan, &mut *step),
            None => Graph::capture(&self.device, &mut *step),
        };
        match captured {
            Ok((graph, loss)) => {
                let (launches, others) = graph.commands();
                tracing::debug!("captured a step: {launches} launches, {others} fills, copies and uploads");
                let (outcome, out) = (graph.replay(), loss.clone());
                self.state = State::Captured { graph, loss, plan };
                outcome.map(|()| out)
            }
            Err(e) => {
                self.give_up(e)?;
                step()
            }
        }
    }

    fn give_up(&self, why: netcl_tensor::Error) -> Result<()> {
        if self.mode == GraphMode::On {
            return Err(why.context("--graph on"));
        }
        tracing::warn!("steps are not replayed from a graph: {why}");
        Ok(())
    }
}
