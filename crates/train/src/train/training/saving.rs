//! Checkpoints of a run.

use super::reporting::Content;
use super::{Run, Task, Training};
use netcl_model::checkpoint::{Checkpoint, Plan};
use netcl_tensor::Result;

impl<T: Task> Run<T> {
    /// Writes a checkpoint of the step just done. All ranks call it; the first one writes.
    ///
    /// # Errors
    /// Errors of the device, the ranks, and the write before it.
    pub(super) fn save(&mut self, best: bool, watch: &mut T::Watch<'_>) -> Result<()> {
        self.training.report.finish_saving(watch)?;
        self.training.progress.saved_step = self.training.progress.step;
        self.settle_parameters()?;
        let Training { ranks, optimizer, .. } = &self.training;
        let state = ranks.gathered_state(optimizer)?;
        let whole = self.task.gathered(&self.training)?;
        if self.training.report.folder.follows() {
            return Ok(());
        }
        let plan = self.checkpoint()?;
        let content = if let Some((model, optimizer)) = whole {
            // The content is already on the host.
            let Plan { state, files, .. } = plan;
            Content::There(Checkpoint { state, model, optimizer, files, ..Checkpoint::default() })
        } else if let Some(optimizer) = state {
            // The host already has all of it.
            let optimizer_files = self.training.ranks.parallel.as_ref().map_or(0, |parallel| parallel.size());
            Content::There(Checkpoint { optimizer, optimizer_files, ..plan.take()? })
        } else {
            Content::Planned(plan)
        };
        self.training.report.save(content, best, watch)
    }

    /// Returns the checkpoint of the step just done; its tensors are still on the device.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn checkpoint(&self) -> Result<Plan<'static>> {
        let Self { task, training } = self;
        let mut state = training.progress.state(task.micros());
        task.note(&mut state);
        // State that is divided between ranks comes from all of them.
        let optimizer = match training.ranks.zero {
            Some(_) => Vec::new(),
            None => training.optimizer.planned_state()?,
        };
        Ok(Plan { state, model: task.planned(), optimizer, optimizer_files: 0, files: task.files()? })
    }
}
