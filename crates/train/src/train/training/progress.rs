//! Progress of a run.

use crate::data::Position;
use crate::schedule::LearningRate;
use netcl_model::checkpoint::{Rng, STATE_FILE, State};
use netcl_tensor::{Error, Result};

/// Progress of a run, as stored in checkpoints.
pub(crate) struct Loop {
    /// The learning rate of each step.
    pub rate: LearningRate,
    /// Steps of the whole run.
    pub steps: u64,
    seed: u64,
    /// Steps done or enqueued.
    pub step: u64,
    /// Step of the newest checkpoint, written or being written.
    pub saved_step: u64,
    /// Position in the data where the next step begins.
    pub position: Position,
    /// Loss of the last evaluation.
    pub val_loss: Option<f64>,
    /// The lowest loss so far, and its step.
    pub best: Option<(f64, u64)>,
}

impl Loop {
    /// Creates the progress of a run of `steps` that has not started.
    pub fn new(rate: LearningRate, steps: u64, seed: u64) -> Self {
        let position = Position { seed, ..Position::default() };
        Self { rate, steps, seed, step: 0, saved_step: 0, position, val_loss: None, best: None }
    }

    /// Returns whether all steps are done.
    pub fn is_finished(&self) -> bool {
        self.step >= self.steps
    }

    /// Returns whether the step enqueued last is the last one.
    pub fn is_last(&self) -> bool {
        self.step == self.steps
    }

    /// Returns whether the step enqueued last is a multiple of `n`; 0 means never.
    pub fn every(&self, n: u64) -> bool {
        n > 0 && self.step.is_multiple_of(n)
    }

    /// Records the loss of an evaluation; returns whether it is the best so far.
    pub fn evaluated(&mut self, loss: f64) -> bool {
        self.val_loss = Some(loss);
        let best = self.best.is_none_or(|(lowest, _)| loss < lowest);
        if best {
            self.best = Some((loss, self.step));
        }
        best
    }

    /// Returns the state for a checkpoint; all random numbers are functions of the seed and the pass, and a step has `micros` passes.
    pub fn state(&self, micros: u32) -> State {
        let mut state = State::default();
        state.step = self.step;
        state.position = self.position;
        state.rng = Rng { seed: self.seed, counter: self.step * u64::from(micros) };
        state.val_loss = self.val_loss;
        state.best_loss = self.best.map(|(loss, _)| loss);
        state.best_step = self.best.map(|(_, step)| step);
        state
    }

    /// Checks that a checkpoint's state belongs to this run.
    ///
    /// # Errors
    /// `Format`: the checksum is valid, but another program could have written the file.
    pub fn check(&self, state: &State) -> Result<()> {
        let expected = Position { seed: self.seed, step: state.step, micro: 0 };
        if state.step > self.steps || state.position != expected {
            return Err(Error::format(format!(
                "{STATE_FILE} is of step {} and {:?}, expected {expected:?} and at most step {}",
                state.step, state.position, self.steps
            )));
        }
        Ok(())
    }

    /// Continues from a state that [`Loop::check`] accepts.
    pub fn restore(&mut self, state: &State) {
        self.step = state.step;
        self.saved_step = state.step;
        self.position = state.position;
        self.val_loss = state.val_loss;
        self.best = state.best_loss.zip(state.best_step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Schedule;

    fn begun() -> Loop {
        let rate = LearningRate { schedule: Schedule::Constant, lr: 1.0, min_lr: 1.0, warmup: 0, decay: 10 };
        Loop::new(rate, 10, 7)
    }

    #[test]
    fn a_checkpoint_has_what_a_run_goes_on_with() {
        let mut run = begun();
        (run.step, run.position.step) = (4, 4);
        assert!(run.evaluated(2.0) && !run.evaluated(3.0) && run.every(2) && !run.every(3) && !run.every(0));
        let state = run.state(3);
        assert_eq!((state.rng.counter, state.val_loss, state.best_loss), (12, Some(3.0), Some(2.0)));
        let mut again = begun();
        again.check(&state).unwrap();
        again.restore(&state);
        assert_eq!((again.step, again.saved_step, again.best), (4, 4, Some((2.0, 4))));
        assert_eq!(again.position, run.position);
    }

    #[test]
    fn state_of_another_run_is_refused() {
        let mut other = begun().state(1);
        other.step = 11;
        other.position.step = 11;
        let message = begun().check(&other).unwrap_err().to_string();
        assert!(message.contains("at most step 10"), "{message}");
        other.step = 3;
        assert!(begun().check(&other).is_err());
    }
}
