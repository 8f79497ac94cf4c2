//! Speeds: tokens over the time in which they were trained on.
//!
//! A step's own time is no measure. The host hears of steps late and in bunches: while it compiles kernels or captures a step, the device
//! ends one or two others, and what lies between hearing of the first and of the second is nothing. So every speed here is over a
//! window of many steps, and is the tokens in it by the time it took.

use super::StepMetrics;
use std::collections::VecDeque;

/// Steps of a window, at the least: two that are heard of at once then make the speed wrong by a twentieth.
const STEPS: usize = 20;
/// Seconds of a window, at the least.
const SECONDS: f64 = 2.0;

/// A point of a run: seconds of training and tokens up to there.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Mark {
    elapsed: f64,
    tokens: u64,
}

impl Mark {
    /// Tokens a second from here to `to`; NaN where no time passed.
    fn speed_to(self, to: Self) -> f64 {
        let (tokens, seconds) = (to.tokens.saturating_sub(self.tokens), to.elapsed - self.elapsed);
        if seconds > 0.0 { tokens as f64 / seconds } else { f64::NAN }
    }
}

/// The speed over the latest steps: the fewest that are [`STEPS`] and last [`SECONDS`], or all since the start where those are
/// fewer.
#[derive(Clone, Debug)]
pub struct SpeedWindow {
    start: Mark,
    /// The window's beginning, and each step in it.
    marks: VecDeque<Mark>,
}

impl SpeedWindow {
    /// Begins where `elapsed` seconds and `tokens` were done before.
    pub fn new(elapsed: f64, tokens: u64) -> Self {
        let start = Mark { elapsed, tokens };
        Self { start, marks: VecDeque::from([start]) }
    }

    /// A step is done. The speed over the window that ends with it.
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

    /// The speed over everything since the start.
    pub fn overall(&self) -> f64 {
        self.marks.back().map_or(f64::NAN, |last| self.start.speed_to(*last))
    }
}

/// Where what is known of a run begins: at nothing, or with its first step that is known where those before were lost.
fn beginning(metrics: &[StepMetrics]) -> Mark {
    let first = metrics.first().filter(|m| m.step > 1);
    first.map_or_else(Mark::default, |m| Mark { elapsed: m.elapsed, tokens: m.tokens })
}

/// The speed of a whole run: all its tokens by all its time.
pub(super) fn overall(metrics: &[StepMetrics]) -> Option<f64> {
    let last = metrics.last()?;
    let speed = beginning(metrics).speed_to(Mark { elapsed: last.elapsed, tokens: last.tokens });
    speed.is_finite().then_some(speed)
}

/// The speed at each step, over the window that ends with it. Made from tokens and time alone: what a version before this one wrote as
/// the speed of a step was that of the step by itself.
pub(super) fn course(metrics: &[StepMetrics]) -> Vec<f64> {
    let Mark { elapsed, tokens } = beginning(metrics);
    let mut window = SpeedWindow::new(elapsed, tokens);
    metrics.iter().map(|m| window.step(m.elapsed, m.tokens)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of 0.1 s and 1000 tokens. The host hears of every second one late, at once with the one after; at step 5 it is away
    /// for two seconds in which the device is, too.
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
        // Slow at first, fast after it.
        let speeds: Vec<f64> = (1..=1000u32)
            .map(|n| window.step(110.0 + f64::from(n) * 0.01, 6000 + 10 * u64::from(n)))
            .collect();
        assert!((speeds[0] - 1010.0 / 10.01).abs() < 1e-9);
        assert!((speeds[999] - 1000.0).abs() < 1e-6, "{}", speeds[999]);
        assert!((window.overall() - 11_000.0 / 20.0).abs() < 1e-9);
        assert!(window.marks.len() <= 203, "{}", window.marks.len());
    }
}
