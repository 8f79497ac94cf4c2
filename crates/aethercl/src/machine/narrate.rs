//! Text log of the machine's actions, for `--trace-level`.

use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

/// Detail of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TraceLevel {
    /// Nothing.
    #[default]
    Off,
    /// One line per command: its kind, its time, its bottleneck.
    Commands,
    /// Also each step: words into the ring, doorbell, fetch, groups onto units, fence, interrupt.
    Steps,
    /// Also register accesses, and the work of each unit.
    All,
}

impl FromStr for TraceLevel {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "off" | "0" => Ok(Self::Off),
            "commands" | "1" => Ok(Self::Commands),
            "steps" | "2" => Ok(Self::Steps),
            "all" | "3" => Ok(Self::All),
            _ => Err(format!("unknown trace level {s:?}; the levels are off, commands, steps, all")),
        }
    }
}

/// Takes lines.
pub type Sink = Box<dyn FnMut(&str) + Send>;

/// Writes log lines in the order of their times. Lines about times after the host clock are held until the host clock reaches them.
#[derive(Default)]
pub struct Narrator {
    level: TraceLevel,
    pending: Option<Mutex<PendingLines>>,
}

struct PendingLines {
    sink: Sink,
    /// Lines that are not due yet, by time, ns.
    held: Vec<(u64, String)>,
    /// Whether commands are announced or running, so that earlier lines may still come.
    open: bool,
}

impl PendingLines {
    fn release(&mut self, until: u64) {
        self.held.sort_by_key(|(at, _)| *at);
        let due = self.held.partition_point(|(at, _)| *at <= until);
        for (_, line) in self.held.drain(..due) {
            (self.sink)(&line);
        }
    }
}

impl Drop for PendingLines {
    fn drop(&mut self) {
        self.release(u64::MAX);
    }
}

impl Narrator {
    /// Returns a narrator that logs up to `level` to `sink`.
    pub fn new(level: TraceLevel, sink: Option<Sink>) -> Self {
        let level = if sink.is_some() { level } else { TraceLevel::Off };
        let pending = |sink| Mutex::new(PendingLines { sink, held: Vec::new(), open: false });
        Self { level, pending: sink.map(pending) }
    }
    /// Returns true if lines of this level are logged; check it before costly formatting.
    pub fn includes(&self, level: TraceLevel) -> bool {
        level <= self.level && level != TraceLevel::Off
    }
    /// Logs a line about a time, ns of the device clock. The line is formatted only if it is logged.
    pub fn say(&self, level: TraceLevel, at: u64, line: impl FnOnce() -> String) {
        if let (true, Some(pending)) = (self.includes(level), &self.pending) {
            let mut pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
            pending.held.push((at, line()));
            if !pending.open {
                pending.release(at);
            }
        }
    }
    /// Called when commands are announced: lines are held until [`Narrator::settle`].
    pub fn announce(&self) {
        if let Some(pending) = &self.pending {
            pending.lock().unwrap_or_else(PoisonError::into_inner).open = true;
        }
    }
    /// Called when all announced commands have completed and the host clock has caught up.
    pub fn settle(&self, now: u64) {
        if let Some(pending) = &self.pending {
            let mut pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
            pending.open = false;
            pending.release(now);
        }
    }
}

impl fmt::Debug for Narrator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Narrator({:?})", self.level)
    }
}

/// Formats a time: `1.5 µs`.
pub fn human_ns(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.2} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        _ => format!("{:.3} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn tells_what_is_asked_for_and_makes_no_other_line() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&heard);
        let sink: Sink = Box::new(move |line: &str| lines.lock().unwrap().push(line.to_owned()));
        let narrator = Narrator::new(TraceLevel::Steps, Some(sink));
        narrator.say(TraceLevel::Commands, 0, || "a".into());
        narrator.say(TraceLevel::Steps, 0, || "b".into());
        narrator.say(TraceLevel::All, 0, || panic!("nobody listens"));
        assert_eq!(*heard.lock().unwrap(), ["a", "b"]);
        Narrator::default().say(TraceLevel::Commands, 0, || panic!("nobody listens"));
    }

    #[test]
    fn lines_come_in_the_order_of_their_times() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&heard);
        let sink: Sink = Box::new(move |line: &str| lines.lock().unwrap().push(line.to_owned()));
        let narrator = Narrator::new(TraceLevel::All, Some(sink));
        let say = |at: u64| narrator.say(TraceLevel::All, at, || at.to_string());
        say(1);
        narrator.announce();
        [1, 5, 3, 9].into_iter().for_each(say);
        assert_eq!(*heard.lock().unwrap(), ["1"]);
        narrator.settle(4);
        assert_eq!(*heard.lock().unwrap(), ["1", "1", "3"]);
        say(6);
        drop(narrator);
        assert_eq!(*heard.lock().unwrap(), ["1", "1", "3", "5", "6", "9"]);
    }

    #[test]
    fn levels_are_named() {
        assert_eq!("steps".parse(), Ok(TraceLevel::Steps));
        assert!("loud".parse::<TraceLevel>().unwrap_err().contains("commands"));
        assert_eq!(human_ns(999), "999 ns");
        assert_eq!(human_ns(1_500), "1.50 µs");
        assert_eq!(human_ns(2_500_000_000), "2.500 s");
    }
}
