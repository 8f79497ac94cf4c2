//! What the machine does, in words, for `--trace-level`.

use std::fmt;
use std::str::FromStr;
use std::sync::Mutex;

/// How much is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TraceLevel {
    /// Nothing.
    #[default]
    Off,
    /// A line a command: what it is, when it ran, what bounded it.
    Commands,
    /// Also each step: words into the ring, doorbell, fetch, groups onto units, fence, interrupt.
    Steps,
    /// Also registers read and written, and what each unit does.
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
            _ => Err(format!("trace level {s:?}; there are off, commands, steps, all")),
        }
    }
}

/// Takes lines.
pub type Sink = Box<dyn FnMut(&str) + Send>;

/// Tells what happens to whoever listens.
#[derive(Default)]
pub struct Narrator {
    level: TraceLevel,
    sink: Option<Mutex<Sink>>,
}

impl Narrator {
    /// Tells up to `level` to `sink`.
    pub fn new(level: TraceLevel, sink: Option<Sink>) -> Self {
        Self { level: if sink.is_some() { level } else { TraceLevel::Off }, sink: sink.map(Mutex::new) }
    }
    /// Whether lines of this level are heard, for what costs something to put into words.
    pub fn hears(&self, level: TraceLevel) -> bool {
        level <= self.level && level != TraceLevel::Off
    }
    /// A line, made only when it is heard.
    pub fn say(&self, level: TraceLevel, line: impl FnOnce() -> String) {
        if let (true, Some(sink)) = (self.hears(level), &self.sink) {
            let mut sink = sink.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            (*sink)(&line());
        }
    }
}

impl fmt::Debug for Narrator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Narrator({:?})", self.level)
    }
}

/// A time for people: `1.5 µs`.
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
        narrator.say(TraceLevel::Commands, || "a".into());
        narrator.say(TraceLevel::Steps, || "b".into());
        narrator.say(TraceLevel::All, || panic!("nobody listens"));
        assert_eq!(*heard.lock().unwrap(), ["a", "b"]);
        Narrator::default().say(TraceLevel::Commands, || panic!("nobody listens"));
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
