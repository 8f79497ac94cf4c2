//! Equal weights on ranks with unlike devices. All make the update from the same sums, but compilers contract and divide differently. So the results
//! may differ in the last bit, and differences remain.

use super::{Run, Task};
use netcl_tensor::Result;
use std::time::Instant;

impl<T: Task> Run<T> {
    /// Gives all ranks the same weights from time to time, after a step.
    pub(super) fn same_weights_in_time(&mut self) -> Result<()> {
        let step = self.training.progress.step;
        let due = self.training.ranks.parallel.as_ref().is_some_and(|p| p.balance.same_is_due(step));
        if due { self.resync_weights() } else { Ok(()) }
    }

    /// Gives all ranks the weights and the optimizer's state of the first one. These are the values of its checkpoint, so a run resumed from there
    /// equals this one. If state is divided, each parameter is updated by one rank anyway. All ranks call it, after the same step.
    pub(super) fn resync_weights(&mut self) -> Result<()> {
        let ranks = &self.training.ranks;
        let Some(parallel) =
            ranks.parallel.as_ref().filter(|p| p.balance.is_unlike() && ranks.zero.is_none())
        else {
            return Ok(());
        };
        let begun = Instant::now();
        let state = self.training.optimizer.state_parts()?.into_iter().map(|part| part.tensor);
        parallel.take_first(self.task.alike().into_iter().chain(state))?;
        self.host_did("same weights", begun);
        Ok(())
    }
}
