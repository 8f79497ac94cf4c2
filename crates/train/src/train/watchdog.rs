//! The time that ranks wait for each other: long until steps run, then a multiple of recent step times.
//!
//! The limit comes from the times between exchanges, with separate times for pauses. After it, threads follow the chain of waiting ranks to the rank
//! that waits for none. MPI processes that wait report this to all, and the ranks that do not report are named (`roll_call` in `netcl-dist`). An
//! error on all ranks is printed once. An error on a single rank ends the other processes by `MPI_Abort`.

use netcl_dist::Watch;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Wait before steps run and for operations done for the first time: compiling kernels takes minutes on some drivers, and ranks do not do it at the
/// same time.
pub const STARTUP_TIMEOUT: Duration = Duration::from_secs(900);
/// Number of steps whose times are ignored, because the first ones compile and capture.
const WARMUP_STEPS: usize = 4;
/// Number of steps whose times are kept.
const KEPT_STEP_TIMES: usize = 32;
/// Maximum time of a step, as a multiple of the longest recent one.
const STEP_TIMEOUT_FACTOR: u32 = 20;
/// Maximum time of a pause, as a multiple of the longest one of its kind.
const PAUSE_TIMEOUT_FACTOR: u32 = 4;
/// The shortest wait: files, and other programs on the machine, occasionally make a step take seconds.
const MIN_TIMEOUT: Duration = Duration::from_secs(20);

/// The work between two steps: evaluation, sample, checkpoint.
pub(super) type Pause = [bool; 3];

/// Sets the patience of a rank from the times between exchanges of gradients.
#[derive(Debug, Default)]
pub(super) struct Watchdog {
    /// The bound of a step, if it was given.
    pub given: Option<Duration>,
    last: Option<Instant>,
    exchanged: usize,
    steps: VecDeque<Duration>,
    pauses: HashMap<Pause, Duration>,
    pausing: Option<Pause>,
}

impl Watchdog {
    /// Records that ranks have exchanged the gradients of a step, after no pause or the last one reported.
    pub fn exchanged(&mut self, watch: &Watch, now: Instant) {
        let took = self.last.replace(now).map(|last| now.duration_since(last));
        self.exchanged += 1;
        match (self.pausing.take(), took) {
            (Some(pause), Some(took)) => {
                let longest = self.pauses.entry(pause).or_default();
                *longest = took.max(*longest);
            }
            (None, Some(took)) => {
                self.steps.truncate(KEPT_STEP_TIMES - 1);
                self.steps.push_front(took);
            }
            (_, None) => {}
        }
        watch.set_patience(self.of_step());
    }

    /// Restores the long bound of the first steps, because the next steps compile and capture again.
    pub fn restart(&mut self, watch: &Watch) {
        (self.exchanged, self.last) = (0, None);
        self.steps.clear();
        watch.set_patience(self.of_step());
    }

    /// Records that ranks pause after this step.
    pub fn pausing(&mut self, watch: &Watch, pause: Pause) {
        self.pausing = Some(pause);
        let bound = self.pauses.get(&pause).map(|longest| longest.saturating_mul(PAUSE_TIMEOUT_FACTOR));
        // A pause of a kind that was never measured has the long bound.
        let bound =
            bound.map_or(STARTUP_TIMEOUT, |bound| bound.saturating_add(self.of_step()).min(STARTUP_TIMEOUT));
        watch.set_patience(bound.max(self.of_step()));
    }

    /// Returns the bound of a step without a pause.
    fn of_step(&self) -> Duration {
        if self.exchanged <= WARMUP_STEPS {
            return STARTUP_TIMEOUT.max(self.given.unwrap_or(STARTUP_TIMEOUT));
        }
        let longest = self.steps.iter().max().copied().unwrap_or(STARTUP_TIMEOUT);
        self.given.unwrap_or_else(|| {
            longest.saturating_mul(STEP_TIMEOUT_FACTOR).clamp(MIN_TIMEOUT, STARTUP_TIMEOUT)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(steps: &[f64], given: Option<Duration>) -> (Watchdog, Watch, Instant) {
        let (mut dog, watch) = (Watchdog { given, ..Watchdog::default() }, Watch::new(STARTUP_TIMEOUT));
        let mut now = Instant::now();
        dog.exchanged(&watch, now);
        for step in steps {
            now += Duration::from_secs_f64(*step);
            dog.exchanged(&watch, now);
        }
        (dog, watch, now)
    }

    #[test]
    fn steps_that_compile_again_have_the_long_bound() {
        let (mut dog, watch, now) = after(&[0.01; 5], None);
        dog.restart(&watch);
        assert_eq!(watch.patience(), STARTUP_TIMEOUT);
        dog.exchanged(&watch, now + Duration::from_secs(100));
        assert_eq!(watch.patience(), STARTUP_TIMEOUT);
    }

    #[test]
    fn patience_follows_the_steps() {
        assert_eq!(after(&[100.0, 1.0, 1.0], None).1.patience(), STARTUP_TIMEOUT, "the first steps compile");
        assert_eq!(after(&[0.01; 5], None).1.patience(), MIN_TIMEOUT);
        assert_eq!(after(&[2.0, 2.0, 3.0, 2.0, 2.0], None).1.patience(), Duration::from_secs(60));
        assert_eq!(after(&[600.0; 6], None).1.patience(), STARTUP_TIMEOUT);
        let mut long = vec![40.0];
        long.extend([2.0; KEPT_STEP_TIMES]);
        assert_eq!(after(&long, None).1.patience(), Duration::from_secs(40), "old times are forgotten");
        let given = Some(Duration::from_secs(5));
        assert_eq!(after(&[1.0; 6], given).1.patience(), Duration::from_secs(5));
        assert_eq!(after(&[1.0; 2], given).1.patience(), STARTUP_TIMEOUT);
    }

    #[test]
    fn pauses_have_times_of_their_own() {
        let (mut dog, watch, mut now) = after(&[0.1; 8], None);
        dog.pausing(&watch, [true, false, false]);
        assert_eq!(watch.patience(), STARTUP_TIMEOUT, "no evaluation was measured yet");
        now += Duration::from_secs(10);
        dog.exchanged(&watch, now);
        assert_eq!(watch.patience(), MIN_TIMEOUT, "a pause is not a step");
        dog.pausing(&watch, [true, false, false]);
        assert_eq!(watch.patience(), Duration::from_secs(60));
        dog.exchanged(&watch, now);
        dog.pausing(&watch, [true, true, false]);
        assert_eq!(watch.patience(), STARTUP_TIMEOUT, "another kind of pause");
    }
}
