//! How long ranks wait for each other: long until steps go, then a multiple of what steps have taken.

use netcl_dist::Watch;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// What ranks wait before steps go and at what they do for the first time: compiling kernels takes minutes on some drivers, and ranks do
/// not do it at the same time.
pub const LONG: Duration = Duration::from_secs(900);
/// Steps before their times are taken for those of others: the first ones compile and capture.
const WARM: usize = 4;
/// Steps whose times are known.
const KNOWN: usize = 32;
/// How many times as long as the longest of them a step may take.
const STEPS: u32 = 20;
/// How many times as long as the longest of its kind a pause may take.
const PAUSES: u32 = 4;
/// The shortest wait: files, and other programs on the machine, make a step take seconds now and then.
const SHORT: Duration = Duration::from_secs(20);

/// What happens between two steps: evaluation, sample, checkpoint.
pub(super) type Pause = [bool; 3];

/// Sets the patience of a rank from the times between exchanges of gradients.
#[derive(Debug, Default)]
pub(super) struct Watchdog {
    /// The bound of a step where it was given.
    pub given: Option<Duration>,
    last: Option<Instant>,
    exchanged: usize,
    steps: VecDeque<Duration>,
    pauses: HashMap<Pause, Duration>,
    pausing: Option<Pause>,
}

impl Watchdog {
    /// Ranks have exchanged the gradients of a step, after no pause or the last one told of.
    pub fn exchanged(&mut self, watch: &Watch, now: Instant) {
        let took = self.last.replace(now).map(|last| now.duration_since(last));
        self.exchanged += 1;
        match (self.pausing.take(), took) {
            (Some(pause), Some(took)) => {
                let longest = self.pauses.entry(pause).or_default();
                *longest = took.max(*longest);
            }
            (None, Some(took)) => {
                self.steps.truncate(KNOWN - 1);
                self.steps.push_front(took);
            }
            (_, None) => {}
        }
        watch.set_patience(self.of_step());
    }

    /// The next steps compile and capture again: they have the long bound of the first ones.
    pub fn restart(&mut self, watch: &Watch) {
        (self.exchanged, self.last) = (0, None);
        self.steps.clear();
        watch.set_patience(self.of_step());
    }

    /// Ranks pause after this step.
    pub fn pausing(&mut self, watch: &Watch, pause: Pause) {
        self.pausing = Some(pause);
        let bound = self.pauses.get(&pause).map(|longest| longest.saturating_mul(PAUSES));
        // What is longer than a step even where nothing is known of it yet.
        let bound = bound.map_or(LONG, |bound| bound.saturating_add(self.of_step()).min(LONG));
        watch.set_patience(bound.max(self.of_step()));
    }

    /// The bound of a step without a pause.
    fn of_step(&self) -> Duration {
        if self.exchanged <= WARM {
            return LONG.max(self.given.unwrap_or(LONG));
        }
        let longest = self.steps.iter().max().copied().unwrap_or(LONG);
        self.given.unwrap_or_else(|| longest.saturating_mul(STEPS).clamp(SHORT, LONG))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(steps: &[f64], given: Option<Duration>) -> (Watchdog, Watch, Instant) {
        let (mut dog, watch) = (Watchdog { given, ..Watchdog::default() }, Watch::new(LONG));
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
        assert_eq!(watch.patience(), LONG);
        dog.exchanged(&watch, now + Duration::from_secs(100));
        assert_eq!(watch.patience(), LONG);
    }

    #[test]
    fn patience_follows_the_steps() {
        assert_eq!(after(&[100.0, 1.0, 1.0], None).1.patience(), LONG, "the first steps compile");
        assert_eq!(after(&[0.01; 5], None).1.patience(), SHORT);
        assert_eq!(after(&[2.0, 2.0, 3.0, 2.0, 2.0], None).1.patience(), Duration::from_secs(60));
        assert_eq!(after(&[600.0; 6], None).1.patience(), LONG);
        let mut long = vec![40.0];
        long.extend([2.0; KNOWN]);
        assert_eq!(after(&long, None).1.patience(), Duration::from_secs(40), "what is long ago is forgotten");
        let given = Some(Duration::from_secs(5));
        assert_eq!(after(&[1.0; 6], given).1.patience(), Duration::from_secs(5));
        assert_eq!(after(&[1.0; 2], given).1.patience(), LONG);
    }

    #[test]
    fn pauses_have_times_of_their_own() {
        let (mut dog, watch, mut now) = after(&[0.1; 8], None);
        dog.pausing(&watch, [true, false, false]);
        assert_eq!(watch.patience(), LONG, "nothing is known of an evaluation yet");
        now += Duration::from_secs(10);
        dog.exchanged(&watch, now);
        assert_eq!(watch.patience(), SHORT, "a pause is no step");
        dog.pausing(&watch, [true, false, false]);
        assert_eq!(watch.patience(), Duration::from_secs(60));
        dog.exchanged(&watch, now);
        dog.pausing(&watch, [true, true, false]);
        assert_eq!(watch.patience(), LONG, "another kind of pause");
    }
}
