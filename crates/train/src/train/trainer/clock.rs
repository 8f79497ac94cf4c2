//! The speed of training on texts.

use crate::run::SpeedWindow;
use std::time::Instant;

/// Time and tokens of a run, without evaluations, samples and checkpoints.
pub(crate) struct TokenClock {
    /// Seconds of training so far.
    pub elapsed: f64,
    /// Tokens trained on so far; steps before a resumption may have had another batch size.
    pub trained: u64,
    last_done: Instant,
    pub speed: SpeedWindow,
}

impl TokenClock {
    /// Starts from the time and the tokens of earlier sessions.
    pub fn new(elapsed: f64, trained: u64) -> Self {
        Self { elapsed, trained, last_done: Instant::now(), speed: SpeedWindow::new(elapsed, 0) }
    }

    /// Starts the clock for training in this process.
    pub fn start(&mut self) {
        self.speed = SpeedWindow::new(self.elapsed, self.trained);
        self.go_on();
    }

    /// Restarts the clock when training continues after other work.
    pub fn go_on(&mut self) {
        self.last_done = Instant::now();
    }

    /// Counts a step of `tokens` that was done at this time. Returns the speed of the latest steps.
    pub fn step(&mut self, at: Instant, tokens: u64) -> f64 {
        let seconds = at.duration_since(self.last_done).as_secs_f64();
        self.last_done = at;
        self.elapsed += seconds;
        self.trained += tokens;
        self.speed.step(self.elapsed, self.trained)
    }
}
