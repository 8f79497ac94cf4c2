//! Progress of a self-test.

use crate::out;
use netcl::tensor::suite::Event;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Interval between lines if stderr is not a terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// A bar on a terminal, occasional lines in a log, nothing with JSON.
pub enum Shown {
    Nothing,
    Bar(indicatif::ProgressBar),
    Lines { device: String, began: Instant, printed: Mutex<Instant> },
}

impl Shown {
    pub fn new(device: &str, json: bool, live: bool) -> Self {
        let now = Instant::now();
        match (json, live) {
            (true, _) => Self::Nothing,
            (false, true) => Self::Bar(out::progress(true, 0, "testing")),
            (false, false) => Self::Lines { device: device.into(), began: now, printed: Mutex::new(now) },
        }
    }

    pub fn tell(&self, event: Event) {
        match self {
            Self::Nothing => {}
            Self::Bar(bar) => {
                bar.set_length(event.all as u64);
                bar.set_position(event.done as u64);
                bar.set_message(format!("{} {}, {} cases", event.op, event.dtype, event.cases));
            }
            Self::Lines { device, began, printed } => {
                let mut printed = printed.lock().unwrap_or_else(PoisonError::into_inner);
                if printed.elapsed() >= PLAIN_EVERY {
                    *printed = Instant::now();
                    out::note(&line(device, event, began.elapsed()));
                }
            }
        }
    }

    pub fn end(&self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

fn line(device: &str, event: Event, since: Duration) -> String {
    let Event { op, dtype, done, all, cases } = event;
    let seconds = since.as_secs();
    format!("testing {device}: {done} of {all} done after {seconds} s, {cases} cases, now {op} in {dtype}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl::prelude::DType;

    #[test]
    fn a_log_says_how_far_a_self_test_is() {
        let event = Event { op: "matmul::MatMul", dtype: DType::F16, done: 7, all: 96, cases: 310 };
        assert_eq!(
            line("pocl:0", event, Duration::from_millis(12_400)),
            "testing pocl:0: 7 of 96 done after 12 s, 310 cases, now matmul::MatMul in f16"
        );
    }
}
