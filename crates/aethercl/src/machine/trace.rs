//! A timeline on the simulated clock, in the format of Perfetto and `chrome://tracing`: one track for the host, and one per queue, copy engine and
//! compute unit.

use std::fmt::Write;

/// Row of the timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Track {
    /// The program that issues the commands.
    Host,
    /// A queue, by number.
    Queue(usize),
    /// A copy engine, by number.
    CopyEngine(usize),
    /// A compute unit, by number.
    Unit(usize),
}

impl Track {
    /// Returns process and thread number, which the viewer uses to group tracks.
    fn ids(self) -> (u32, usize) {
        match self {
            Self::Host => (1, 0),
            Self::Queue(n) => (2, n),
            Self::CopyEngine(n) => (3, n),
            Self::Unit(n) => (4, n),
        }
    }
    fn name(self) -> String {
        match self {
            Self::Host => "host".into(),
            Self::Queue(n) => format!("queue {n}"),
            Self::CopyEngine(n) => format!("copy engine {n}"),
            Self::Unit(n) => format!("compute unit {n}"),
        }
    }
}

#[derive(Clone, Debug)]
struct Span {
    track: Track,
    name: String,
    start_ns: u64,
    end_ns: u64,
    /// Shown next to the name when the span is selected.
    details: Vec<(&'static str, String)>,
}

/// Maximum number of kept spans, about 150 bytes each; a training run would fill the memory otherwise.
const MAX_SPANS: usize = 1_000_000;

/// Recorded events with their times.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    spans: Vec<Span>,
    dropped: u64,
}

impl Timeline {
    /// Adds a span.
    pub fn add(
        &mut self,
        track: Track,
        name: &str,
        (start_ns, end_ns): (u64, u64),
        details: &[(&'static str, String)],
    ) {
        if self.spans.len() >= MAX_SPANS {
            self.dropped += 1;
            return;
        }
        self.spans.push(Span { track, name: name.into(), start_ns, end_ns, details: details.to_vec() });
    }

    /// Spans so far.
    pub fn len(&self) -> usize {
        self.spans.len()
    }
    /// Returns true if nothing happened.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }
    /// Returns the number of spans dropped after the timeline was full.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the JSON text. Times are in microseconds with three decimals.
    pub fn json(&self) -> String {
        let mut tracks: Vec<Track> = self.spans.iter().map(|s| s.track).collect();
        tracks.sort_unstable();
        tracks.dedup();
        let mut out = String::from("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
        let mut first = true;
        for (pid, name) in [(1, "host"), (2, "queues"), (3, "copy engines"), (4, "compute units")] {
            separate(&mut out, &mut first);
            let _ = write!(
                out,
                "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{pid},\"args\":{{\"name\":\"{name}\"}}}}"
            );
        }
        for track in tracks {
            let (pid, tid) = track.ids();
            separate(&mut out, &mut first);
            let name = track.name();
            let _ = write!(
                out,
                "{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{pid},\"tid\":{tid},\"args\":{{\"name\":\"{name}\"}}}}"
            );
        }
        for span in &self.spans {
            separate(&mut out, &mut first);
            span.write(&mut out);
        }
        out.push_str("\n]}\n");
        out
    }
}

impl Span {
    fn write(&self, out: &mut String) {
        let (pid, tid) = self.track.ids();
        let micros = |ns: u64| format!("{}.{:03}", ns / 1000, ns % 1000);
        let (start, length) = (micros(self.start_ns), micros(self.end_ns.saturating_sub(self.start_ns)));
        let _ = write!(
            out,
            "{{\"ph\":\"X\",\"name\":\"{}\",\"pid\":{pid},\"tid\":{tid},\"ts\":{start},\"dur\":{length}",
            escape(&self.name)
        );
        if !self.details.is_empty() {
            let pairs: Vec<String> =
                self.details.iter().map(|(k, v)| format!("\"{}\":\"{}\"", escape(k), escape(v))).collect();
            let _ = write!(out, ",\"args\":{{{}}}", pairs.join(","));
        }
        out.push('}');
    }
}

fn separate(out: &mut String, first: &mut bool) {
    if !std::mem::take(first) {
        out.push_str(",\n");
    }
}

/// Escapes the content of a JSON string.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracks_are_named_once_and_times_are_microseconds() {
        let mut timeline = Timeline::default();
        timeline.add(Track::Unit(3), "matmul \"8\"", (1_500, 2_750), &[("groups", "4".into())]);
        timeline.add(Track::Unit(3), "matmul", (3_000, 3_001), &[]);
        timeline.add(Track::Queue(0), "copy", (0, 10), &[]);
        let text = timeline.json();
        assert_eq!(text.matches("compute unit 3").count(), 1);
        assert!(
            text.contains(
                r#""name":"matmul \"8\"","pid":4,"tid":3,"ts":1.500,"dur":1.250,"args":{"groups":"4"}"#
            ),
            "{text}"
        );
        // Brackets are balanced, and every line but the first and last ends in a comma or is the last.
        assert_eq!(text.matches('{').count(), text.matches('}').count());
        assert_eq!(text.matches("\"ph\":\"X\"").count(), 3);
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(escape("a\"\\\n\u{1}é"), "a\\\"\\\\\\n\\u0001é");
    }
}
