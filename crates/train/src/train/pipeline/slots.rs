//! A stage's micro-batches between their forward and their backward pass, and the graphs of both.
//!
//! A micro-batch keeps a slot from its forward to its backward pass. Each slot has inputs at fixed addresses and its own graph, because a slot's
//! activations wait while others compute. Forward and backward are captured together, so that one plan places the buffers that live from one to the
//! other; each half is replayed separately.

use super::pipe::StageFormat;
use crate::data::Batch;
use netcl_model::layers::Mode;
use netcl_tensor::graph::{BufferPlan, Graph, Trace};
use netcl_tensor::random::{counter, set_counter};
use netcl_tensor::{DType, Device, Result, Tensor, unfused};

/// The slot of a micro-batch.
pub struct Slot {
    /// Token ids (B, T), in the first stage.
    pub ids: Option<Tensor>,
    /// Targets (B, T), in the last stage.
    pub targets: Option<Tensor>,
    /// Weight (1) f32 of the sum of the micro-batch's losses, in the last stage, if the loss is not their mean.
    pub weight: Option<Tensor>,
    /// Rows of the previous stage (B, T, C), in all stages except the first; a leaf whose gradient goes back there.
    pub input: Option<Tensor>,
    /// The gradient of the forward pass's result, from the next stage; all slots share it. `None` in the last stage.
    pub dy: Option<Tensor>,
    /// The number of draws before the dropout of this micro-batch, if there is dropout.
    pub draws: Option<Tensor>,
    passes: Option<Captured>,
}

/// Both captured passes of a micro-batch.
struct Captured {
    graph: Graph,
    made: Passes,
}

/// The results of both passes of a micro-batch, which ran one after the other.
pub struct Passes {
    /// Rows for the next stage, or the loss.
    pub output: Tensor,
    /// Gradient for the previous stage.
    pub gradient: Option<Tensor>,
    /// Commands of the forward pass.
    pub forward: usize,
}

/// A slot's inputs.
#[derive(Clone, Copy)]
pub struct SlotInputs {
    pub first: bool,
    pub last: bool,
    pub dropout: bool,
    /// Whether the losses of a batch are weighted.
    pub weighted: bool,
}

impl Slot {
    fn new(rows: &StageFormat, inputs: SlotInputs, dy: Option<&Tensor>) -> Result<Self> {
        let StageFormat { device, shape, dtype } = rows;
        let _tag = device.tag("inputs");
        let ids = || {
            let [b, t] = [0, 1].map(|axis| shape.dims().get(axis).copied().unwrap_or(1));
            Tensor::from_u32(device, [b, t], &vec![0; b * t])
        };
        let input = || Tensor::zeros(device, shape.clone(), *dtype);
        Ok(Self {
            ids: inputs.first.then(ids).transpose()?,
            targets: inputs.last.then(ids).transpose()?,
            weight: (inputs.last && inputs.weighted)
                .then(|| Tensor::zeros(device, [1], DType::F32))
                .transpose()?,
            input: (!inputs.first)
                .then(input)
                .transpose()?
                .map(|x| x.parameter("rows of the previous stage")),
            dy: dy.cloned(),
            draws: inputs.dropout.then(|| counter(device, 0)).transpose()?,
            passes: None,
        })
    }

    /// Fills the slot with the tokens of a micro-batch, the weight of its losses, and its position in the streams of random numbers.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn fill(&self, batch: &Batch, weight: f32, pass: u64) -> Result<()> {
        for (tensor, values) in [(&self.ids, &batch.x), (&self.targets, &batch.y)] {
            tensor.as_ref().map_or(Ok(()), |tensor| tensor.write_bytes(0, bytemuck::cast_slice(values)))?;
        }
        self.weight.as_ref().map_or(Ok(()), |tensor| tensor.write_bytes(0, &weight.to_le_bytes()))?;
        self.draws.as_ref().map_or(Ok(()), |draws| set_counter(draws, Mode::draws(pass)))
    }

    /// Replays the forward pass, if it is captured; returns its result.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn replay_forward(&self) -> Result<Option<Tensor>> {
        let Some(Captured { graph, made }) = &self.passes else { return Ok(None) };
        graph.replay_part(0..made.forward)?;
        Ok(Some(made.output.clone()))
    }

    /// Replays the backward pass, if it is captured; returns the gradient for the previous stage.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn replay_backward(&self) -> Result<Option<Option<Tensor>>> {
        let Some(Captured { graph, made }) = &self.passes else { return Ok(None) };
        graph.replay_part(made.forward..graph.len())?;
        Ok(Some(made.gradient.clone()))
    }
}

/// The slots of a stage.
#[derive(Default)]
pub struct Slots {
    all: Vec<Slot>,
    plan: Option<BufferPlan>,
    /// Whether capturing was postponed to the second step.
    put_off: bool,
}

impl Slots {
    /// Creates as many slots as the stage holds micro-batches at a time.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(rows: &StageFormat, inputs: SlotInputs, count: usize) -> Result<Self> {
        let dy = || Tensor::zeros(&rows.device, rows.shape.clone(), rows.dtype);
        let dy = (!inputs.last).then(dy).transpose()?;
        let all = (0..count).map(|_| Slot::new(rows, inputs, dy.as_ref())).collect::<Result<_>>()?;
        Ok(Self { all, plan: None, put_off: false })
    }

    /// Returns whether no slots exist yet.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the number of slots.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the slot of a micro-batch.
    pub fn of(&self, micro: usize) -> Option<&Slot> {
        self.all.get(micro % self.all.len().max(1))
    }

    /// Returns whether passes are replayed.
    pub fn are_captured(&self) -> bool {
        self.all.first().is_some_and(|slot| slot.passes.is_some())
    }

    /// Returns the memory plan of a slot's buffers.
    pub fn plan(&self) -> Option<&BufferPlan> {
        self.plan.as_ref()
    }

    /// Captures `passes`, forward and backward one after the other, for every slot. If the memory cannot be planned, the first step runs eagerly.
    ///
    /// # Errors
    /// Errors of the capture; the slots then run eagerly.
    pub fn capture(&mut self, device: &Device, passes: impl Fn(&Slot) -> Result<Passes>) -> Result<()> {
        if self.are_captured() || self.all.is_empty() {
            return Ok(());
        }
        // Memory checkers need every buffer to be a separate allocation.
        let plan = match device.settings().exact_memory {
            true => Ok(None),
            false => unfused(|| Trace::dry_run(device, || passes(&self.all[0])))
                .and_then(|trace| BufferPlan::new(device, &trace))
                .map(Some),
        };
        if !matches!(plan, Ok(Some(_))) && !std::mem::replace(&mut self.put_off, true) {
            return Ok(());
        }
        self.plan = plan.unwrap_or_else(|e| {
            tracing::debug!("cannot plan the memory of passes: {e}");
            None
        });
        for slot in &mut self.all {
            // Eager and replayed passes have the same bits.
            let captured = unfused(|| match &self.plan {
                Some(plan) => Graph::planned(device, plan, || passes(slot)),
                None => Graph::capture(device, || passes(slot)),
            });
            match captured {
                Ok((graph, made)) => slot.passes = Some(Captured { graph, made }),
                Err(e) => {
                    self.plan = None;
                    self.all.iter_mut().for_each(|slot| slot.passes = None);
                    return Err(e);
                }
            }
        }
        let commands = self.all.first().and_then(|slot| slot.passes.as_ref()).map(|p| p.graph.commands());
        tracing::debug!("captured the passes of {} micro-batches: {commands:?} commands", self.all.len());
        Ok(())
    }
}
