//! Progress of reading and tokenizing data: a bar on a terminal, occasional lines elsewhere.

use crate::context::{Context, Reading};
use crate::out;
use indicatif::{ProgressBar, ProgressDrawTarget};
use netcl::device::human;
use netcl::train::data::{DataProgress, Stage};
use std::time::{Duration, Instant};

/// Shorter work shows no bar.
const MIN_TIME_FOR_BAR: Duration = Duration::from_millis(400);
/// Interval between lines if stderr is not a terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// Shows the progress of reading data. Clears its line when dropped.
pub struct ReadingBar<'a> {
    context: &'a Context,
    bar: Option<ProgressBar>,
    stage: Option<Stage>,
    began: Instant,
    printed: Instant,
    _reading: Reading,
}

impl<'a> ReadingBar<'a> {
    /// Creates the bar, which shows nothing until something is read.
    pub fn new(context: &'a Context) -> Self {
        let now = Instant::now();
        Self { context, bar: None, stage: None, began: now, printed: now, _reading: context.reading() }
    }

    /// Shows progress; returns false after a signal. After the final event, a signal only requests a stop, because a run is written from then on.
    pub fn show(&mut self, p: &DataProgress) -> bool {
        if p.stage == Stage::Done {
            self.clear();
            return self.context.polite();
        }
        if self.stage != Some(p.stage) {
            self.clear();
            (self.stage, self.began, self.printed) = (Some(p.stage), Instant::now(), Instant::now());
        }
        let taken = self.began.elapsed();
        if taken >= MIN_TIME_FOR_BAR {
            let line = line(p, taken);
            if self.context.live() {
                self.bar(p.total).set_message(line);
                self.bar(p.total).set_position(p.done.min(p.total));
            } else if self.printed.elapsed() >= PLAIN_EVERY {
                self.printed = Instant::now();
                out::note(&line);
            }
            if p.done >= p.total && p.stage == Stage::Tokenizing {
                self.clear();
                out::note(&line_done(p, taken));
            }
        }
        !self.context.interrupted()
    }

    fn bar(&mut self, total: u64) -> &ProgressBar {
        self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(8));
            bar.set_style(out::style("{bar:24} {wide_msg}  ETA {eta}"));
            bar
        })
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for ReadingBar<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Returns the average speed over the whole time.
fn speed(p: &DataProgress, taken: Duration) -> String {
    format!("{:.1} MB/s", p.done as f64 / 1e6 / taken.as_secs_f64().max(1e-9))
}

fn line(p: &DataProgress, taken: Duration) -> String {
    if p.stage == Stage::Kernels {
        return format!("{}: {} of {}", p.stage.name(), p.done, p.total);
    }
    let tokens = if p.tokens > 0 { format!(", {} tokens", p.tokens) } else { String::new() };
    let (done, total) = (human(p.done.min(p.total)), human(p.total));
    format!("{} {done} of {total}, {}{tokens}", p.stage.name(), speed(p, taken))
}

fn line_done(p: &DataProgress, taken: Duration) -> String {
    format!(
        "{} tokens from {} of text in {:.1} s, {}",
        p.tokens,
        human(p.total),
        taken.as_secs_f64(),
        speed(p, taken)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_what_how_far_and_how_fast() {
        let p = DataProgress { stage: Stage::Tokenizing, done: 30 << 20, total: 60 << 20, tokens: 7 };
        let text = line(&p, Duration::from_secs(3));
        assert_eq!(text, "tokenizing 30.0 MiB of 60.0 MiB, 10.5 MB/s, 7 tokens");
        let kernels = DataProgress { stage: Stage::Kernels, done: 3, total: 40, tokens: 0 };
        assert_eq!(line(&kernels, Duration::from_secs(3)), "compiling kernels: 3 of 40");
        let text = line_done(&DataProgress { done: 60 << 20, ..p }, Duration::from_secs(6));
        assert_eq!(text, "7 tokens from 60.0 MiB of text in 6.0 s, 10.5 MB/s");
    }
}
