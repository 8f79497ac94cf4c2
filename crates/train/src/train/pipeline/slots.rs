//! What a stage has of the micro-batches between their forward and their backward pass, and the graphs of both.
//!
//! A micro-batch has a slot from one to the other. Each slot has inputs at fixed addresses and a graph of its own, because a slot's activations
//! wait while others compute: forward and backward are captured together, so that one plan places what lives from one to the other, and each
//! half is replayed when its turn comes.

use super::pipe::Rows;
use crate::data::Batch;
use netcl_model::layers::Mode;
use netcl_tensor::graph::{Graph, Plan, Trace};
use netcl_tensor::random::{counter, set_counter};
use netcl_tensor::{Device, Result, Tensor, unfused};

/// The place of a micro-batch.
pub struct Slot {
    /// Token ids (B, T), in the first stage.
    pub ids: Option<Tensor>,
    /// Targets (B, T), in the last one.
    pub targets: Option<Tensor>,
    /// Rows of the stage before (B, T, C), in the others than the first; a leaf whose gradient goes back there.
    pub input: Option<Tensor>,
    /// The gradient of what the forward pass makes, from the stage behind; all slots share it. None in the last stage.
    pub dy: Option<Tensor>,
    /// The number of draws before the dropout of this micro-batch, if there is dropout.
    pub draws: Option<Tensor>,
    passes: Option<Captured>,
}

/// Both passes of a micro-batch, captured.
struct Captured {
    graph: Graph,
    made: Passes,
}

/// What both passes of a micro-batch have made, one behind the other.
pub struct Passes {
    /// For the stage behind, or the loss.
    pub output: Tensor,
    /// For the stage before.
    pub gradient: Option<Tensor>,
    /// Commands of the forward pass.
    pub forward: usize,
}

/// A slot's inputs.
#[derive(Clone, Copy)]
pub struct Inputs {
    pub first: bool,
    pub last: bool,
    pub dropout: bool,
}

impl Slot {
    fn new(rows: &Rows, inputs: Inputs, dy: Option<&Tensor>) -> Result<Self> {
        let Rows { device, shape, dtype } = rows;
        let _tag = device.tag("inputs");
        let ids = || {
            let [b, t] = [0, 1].map(|axis| shape.dims().get(axis).copied().unwrap_or(1));
            Tensor::from_u32(device, [b, t], &vec![0; b * t])
        };
        let input = || Tensor::zeros(device, shape.clone(), *dtype);
        Ok(Self {
            ids: inputs.first.then(ids).transpose()?,
            targets: inputs.last.then(ids).transpose()?,
            input: (!inputs.first).then(input).transpose()?.map(|x| x.parameter("rows of the stage before")),
            dy: dy.cloned(),
            draws: inputs.dropout.then(|| counter(device, 0)).transpose()?,
            passes: None,
        })
    }

    /// Gives the slot the tokens of a micro-batch and its place in the streams of random numbers.
    ///
    /// # Errors
    /// Those of the device.
    pub fn fill(&self, batch: &Batch, pass: u64) -> Result<()> {
        for (tensor, values) in [(&self.ids, &batch.x), (&self.targets, &batch.y)] {
            tensor.as_ref().map_or(Ok(()), |tensor| tensor.write_bytes(0, bytemuck::cast_slice(values)))?;
        }
        self.draws.as_ref().map_or(Ok(()), |draws| set_counter(draws, Mode::draws(pass)))
    }

    /// Replays the forward pass, if it is captured; what it makes.
    ///
    /// # Errors
    /// Those of the device.
    pub fn replay_forward(&self) -> Result<Option<Tensor>> {
        let Some(Captured { graph, made }) = &self.passes else { return Ok(None) };
        graph.replay_part(0..made.forward)?;
        Ok(Some(made.output.clone()))
    }

    /// Replays the backward pass, if it is captured; the gradient for the stage before.
    ///
    /// # Errors
    /// Those of the device.
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
    plan: Option<Plan>,
    /// Whether capturing them was put off to the second step.
    put_off: bool,
}

impl Slots {
    /// As many slots as a stage has micro-batches at a time.
    ///
    /// # Errors
    /// Those of the device.
    pub fn new(rows: &Rows, inputs: Inputs, count: usize) -> Result<Self> {
        let dy = || Tensor::zeros(&rows.device, rows.shape.clone(), rows.dtype);
        let dy = (!inputs.last).then(dy).transpose()?;
        let all = (0..count).map(|_| Slot::new(rows, inputs, dy.as_ref())).collect::<Result<_>>()?;
        Ok(Self { all, plan: None, put_off: false })
    }

    /// Whether there are none yet.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// That of a micro-batch.
    pub fn of(&self, micro: usize) -> Option<&Slot> {
        self.all.get(micro % self.all.len().max(1))
    }

    /// Whether passes are replayed.
    pub fn are_captured(&self) -> bool {
        self.all.first().is_some_and(|slot| slot.passes.is_some())
    }

    /// Where the buffers of a slot lie.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// Captures `passes`, forward and backward one behind the other, for every slot. The first step runs as it is called where its memory cannot
    /// be planned before.
    ///
    /// # Errors
    /// Those of the capture; the slots then run as they are called.
    pub fn capture(&mut self, device: &Device, passes: impl Fn(&Slot) -> Result<Passes>) -> Result<()> {
        if self.are_captured() || self.all.is_empty() {
            return Ok(());
        }
        // Memory checkers need every buffer to be a separate allocation.
        let plan = match device.settings().exact_memory {
            true => Ok(None),
            false => unfused(|| Trace::dry_run(device, || passes(&self.all[0])))
                .and_then(|trace| Plan::new(device, &trace))
                .map(Some),
        };
        if !matches!(plan, Ok(Some(_))) && !std::mem::replace(&mut self.put_off, true) {
            return Ok(());
        }
        self.plan = plan.unwrap_or_else(|e| {
            tracing::debug!("the memory of passes is not planned: {e}");
            None
        });
        for slot in &mut self.all {
            // Passes that run as they are called and those that are replayed have the same bits.
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
