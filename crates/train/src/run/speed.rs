//! Training speed in tokens per second.
//!
//! The time between the results of two steps is not a useful measure. While the host compiles kernels or captures a step, the device completes one or
//! two others. The host then reads their results at nearly the same time. Therefore speeds are averages over a window of many steps: tokens in the
//! window over its duration.

use super::StepMetrics;
use std::collections::VecDeque;

/// Minimum number of steps in a window. Two results read at the same time then change the speed by a twentieth.
const STEPS: usize = 20;
/// Minimum duration of a window in seconds.
const SECONDS: f64 = 2.0;

/// A point of a run: training time in seconds and tokens so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Mark {
    elapsed: f64,
    tokens: u64,
}

impl Mark {
    /// Returns the tokens per second from here to `to`; NaN if no time passed.
    fn speed_to(self, to: Self) -> f64 {
        let (tokens, seconds) = (to.tokens.saturating_sub(self.tokens), to.elapsed - self.elapsed);
        if seconds > 0.0 { tokens as f64 / seconds } else { f64::NAN }
    }
}

/// The speed over the latest steps: the shortest window with at least [`STEPS`] steps and [`SECONDS`] seconds, or everything since the start.
#[derive(Clone, Debug)]
pub struct SpeedWindow {
    start: Mark,
    /// Start of the window and the steps in it.
    marks: VecDeque<Mark>,
}

impl SpeedWindow {
    /// Creates a window after `elapsed` seconds and `tokens` of earlier sessions.
    pub fn new(elapsed: f64, tokens: u64) -> Self {
        let start = Mark { elapsed, tokens };
        Self { start, marks: VecDeque::from([start]) }
    }

    /// Adds a step and returns the speed of the window that ends with it.
    pub fn step(&mut self, elapsed: f64, tokens: u64) -> f64 {
        let now = Mark { elapsed, tokens };
        self.marks.push_back(now);
        while self.marks.len() > STEPS + 1
            && self.marks.get(1).is_some_and(|m| elapsed - m.elapsed >= SECONDS)
        {
            self.marks.pop_front();
        }
        self.marks.front().map_or(f64::NAN, |from| from.speed_to(now))
    }

    /// Returns the average speed since the start.
    pub fn overall(&self) -> f64 {
        self.marks.back().map_or(f64::NAN, |last| self.start.speed_to(*last))
    }
}

/// Returns the start of a run's records: zero, or its first recorded step if earlier records were lost.
fn beginning(metrics: &[StepMetrics]) -> Mark {
    let first = metrics.first().filter(|m| m.step > 1);
    first.map_or_else(Mark::default, |m| Mark { elapsed: m.elapsed, tokens: m.tokens })
}

/// Returns the average speed of a whole run.
pub(super) fn overall(metrics: &[StepMetrics]) -> Option<f64> {
    let last = metrics.last()?;
    let speed = beginning(metrics).speed_to(Mark { elapsed: last.elapsed, tokens: last.tokens });
    speed.is_finite().then_some(speed)
}

/// Returns the speed at each step over the window that ends with it, computed from recorded tokens and times. Older versions recorded the speed of
/// each single step.
pub(super) fn course(metrics: &[StepMetrics]) -> Vec<f64> {
    let Mark { elapsed, tokens } = beginning(metrics);
    let mut window = SpeedWindow::new(elapsed, tokens);
    metrics.iter().map(|m| window.step(m.elapsed, m.tokens)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns steps of 0.1 s and 1000 tokens. The host receives every second one late, together with the next one. At step 5 host and device pause
    /// for two seconds.
    fn bunched(steps: u64) -> Vec<StepMetrics> {
        let metrics = |step: u64| {
            let done = step as f64 * 0.1 + if step >= 5 { 2.0 } else { 0.0 };
            let late = if step.is_multiple_of(2) { 0.0 } else { 0.1 - 1e-6 };
            StepMetrics { step, elapsed: done + late, tokens: step * 1000, ..StepMetrics::default() }
        };
        (1..=steps).map(metrics).collect()
    }

    #[test]
    fn a_speed_is_tokens_over_time_however_late_the_host_hears_of_steps() {
        let run = bunched(200);
        let momentary = |a: &StepMetrics, b: &StepMetrics| 1000.0 / (b.elapsed - a.elapsed);
        let rates: Vec<f64> = run.windows(2).map(|w| momentary(&w[0], &w[1])).collect();
        assert!(rates.iter().sum::<f64>() / rates.len() as f64 > 1e8, "the mean of momentary rates");
        let course = course(&run);
        for (m, speed) in run.iter().zip(&course) {
            let most = if m.step <= STEPS as u64 { 10_000.0 } else { 10_000.0 * 1.06 };
            assert!((0.0..=most).contains(speed), "step {}: {speed}", m.step);
        }
        let settled = &course[60..];
        assert!(settled.iter().all(|s| (s / 10_000.0 - 1.0).abs() < 0.06), "{settled:?}");
        let whole = overall(&run).unwrap();
        assert!((whole - 200_000.0 / 22.0).abs() < 1.0, "{whole}");
    }

    #[test]
    fn a_window_begins_with_the_session_and_forgets_what_is_long_ago() {
        let mut window = SpeedWindow::new(100.0, 5000);
        assert!(window.overall().is_nan());
        assert_eq!(window.step(110.0, 6000), 100.0);
        // Slow steps, followed by fast ones.
        let speeds: Vec<f64> = (1..=1000u32)
            .map(|n| window.step(110.0 + f64::from(n) * 0.01, 6000 + 10 * u64::from(n)))
            .collect();
        assert!((speeds[0] - 1010.0 / 10.01).abs() < 1e-9);
        assert!((speeds[999] - 1000.0).abs() < 1e-6, "{}", speeds[999]);
        assert!((window.overall() - 11_000.0 / 20.0).abs() < 1e-9);
        assert!(window.marks.len() <= 203, "{}", window.marks.len());
    }
}
