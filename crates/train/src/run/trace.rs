//! Export of profiled steps as a trace for Perfetto (`ui.perfetto.dev`) and `chrome://tracing`: one track for the host and one for each queue of
//! the device, with host times.

use netcl_device::driver::QueueKind;
use netcl_device::{LaunchTime, Timeline, Transfer};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;
use std::time::Instant;

/// A host activity.
#[derive(Clone, Copy, Debug)]
pub struct HostSpan {
    /// Name.
    pub name: &'static str,
    /// The step it belongs to.
    pub step: u64,
    /// Start time.
    pub start: Instant,
    /// End time.
    pub end: Instant,
}

/// A track: process and thread id, by which viewers group, and name.
const HOST: (u32, u32, &str) = (1, 0, "host");
const COMPUTE: (u32, u32, &str) = (2, 0, "compute queue");
const COPY: (u32, u32, &str) = (2, 1, "copy queue");

/// Returns the trace as JSON text, with times in microseconds with three decimals. `about` is metadata of the trace.
///
/// Events of a track are ordered by start time. Their category is `host`, `kernel` or `transfer`.
pub fn trace_json(timeline: &Timeline, host: &[HostSpan], about: &Value) -> String {
    let mut lines = vec![
        json!({ "ph": "M", "name": "process_name", "pid": HOST.0, "args": { "name": "host" } }).to_string(),
        json!({ "ph": "M", "name": "process_name", "pid": COMPUTE.0, "args": { "name": "device" } })
            .to_string(),
    ];
    for (pid, tid, name) in [HOST, COMPUTE, COPY] {
        let args = json!({ "name": name });
        lines.push(
            json!({ "ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": args }).to_string(),
        );
    }
    let mut events: Vec<Event<'_>> = host.iter().map(|s| Event::host(s, timeline)).collect();
    events.extend(timeline.launches.iter().map(Event::launch));
    events.extend(timeline.transfers.iter().map(Event::transfer));
    events.sort_by_key(|e| (e.track.0, e.track.1, e.start_ns));
    lines.extend(events.iter().map(Event::line));
    let mut about = about.clone();
    about["clock_error_us"] = json!(timeline.clock_error_ns as f64 / 1e3);
    about["span_us"] = json!(timeline.end_ns as f64 / 1e3);
    format!(
        "{{\"displayTimeUnit\":\"ns\",\"otherData\":{about},\"traceEvents\":[\n{}\n]}}\n",
        lines.join(",\n")
    )
}

/// Writes the trace atomically.
///
/// # Errors
/// `Io` with the path.
pub fn write_trace(path: &Path, json: &str) -> netcl_device::Result<()> {
    super::replace(path, json.as_bytes())
}

struct Event<'a> {
    track: (u32, u32, &'static str),
    category: &'static str,
    name: &'a str,
    start_ns: u64,
    end_ns: u64,
    args: Value,
}

impl<'a> Event<'a> {
    fn host(span: &HostSpan, timeline: &Timeline) -> Self {
        let since = |at: Instant| at.saturating_duration_since(timeline.begun).as_nanos();
        let nanos = |at| u64::try_from(since(at)).unwrap_or(u64::MAX);
        let (start_ns, end_ns) = (nanos(span.start), nanos(span.end));
        let args = json!({ "step": span.step });
        Self { track: HOST, category: "host", name: span.name, start_ns, end_ns, args }
    }

    fn launch(launch: &'a LaunchTime) -> Self {
        let LaunchTime { variant, global, local, bytes, flops, start_ns, end_ns, .. } = launch;
        let rate = |n: u64| n as f64 / (end_ns.saturating_sub(*start_ns)).max(1) as f64;
        let mut args = json!({ "kernel": variant, "global": global, "local": local, "bytes": bytes, "GB/s": rate(*bytes) });
        if *flops > 0 {
            args["flop"] = json!(flops);
            args["GFLOP/s"] = json!(rate(*flops));
        }
        let (start_ns, end_ns) = (*start_ns, *end_ns);
        Self { track: COMPUTE, category: "kernel", name: launch.name, start_ns, end_ns, args }
    }

    fn transfer(transfer: &Transfer) -> Self {
        let Transfer { kind, queue, bytes, start_ns, end_ns } = *transfer;
        let track = if queue == QueueKind::Compute { COMPUTE } else { COPY };
        let rate = bytes as f64 / (end_ns.saturating_sub(start_ns)).max(1) as f64;
        let args = json!({ "bytes": bytes, "GB/s": rate });
        Self { track, category: "transfer", name: kind.name(), start_ns, end_ns, args }
    }

    fn line(&self) -> String {
        let micros = |ns: u64| format!("{}.{:03}", ns / 1000, ns % 1000);
        let (pid, tid, _) = self.track;
        let mut out = String::new();
        // The JSON library quotes names; times keep their three decimals.
        let _ = write!(
            out,
            "{{\"ph\":\"X\",\"cat\":\"{}\",\"name\":{},\"pid\":{pid},\"tid\":{tid},\"ts\":{},\"dur\":{},\"args\":{}}}",
            self.category,
            Value::from(self.name),
            micros(self.start_ns),
            micros(self.end_ns.saturating_sub(self.start_ns)),
            self.args
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_device::TransferKind;
    use std::time::Duration;

    #[test]
    fn tracks_and_events_in_order() {
        let begun = Instant::now();
        let launch = |name, start_ns: u64, flops| LaunchTime {
            name,
            variant: "text",
            global: [64, 1, 1],
            local: [32, 1, 1],
            seconds: 1e-6,
            bytes: 4000,
            flops,
            start_ns,
            end_ns: start_ns + 1000,
        };
        let upload = Transfer {
            kind: TransferKind::Upload,
            queue: QueueKind::Copy,
            bytes: 10,
            start_ns: 5,
            end_ns: 5,
        };
        let timeline = Timeline {
            begun,
            end_ns: 10_000,
            launches: vec![launch("late", 3000, 0), launch("ea\"rly", 1500, 2000)],
            transfers: vec![upload],
            clock_error_ns: 1500,
        };
        let span = HostSpan {
            name: "enqueue",
            step: 3,
            start: begun + Duration::from_nanos(700),
            end: begun + Duration::from_nanos(2000),
        };
        let text = trace_json(&timeline, &[span], &json!({ "device": "none" }));
        let trace: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(trace["otherData"], json!({ "device": "none", "clock_error_us": 1.5, "span_us": 10.0 }));
        let events: Vec<&Value> =
            trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X").collect();
        let names: Vec<&str> = events.iter().map(|e| e["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["enqueue", "ea\"rly", "late", "upload"]);
        assert!(text.contains("\"ts\":0.700,\"dur\":1.300"), "{text}");
        assert_eq!(events[1]["args"]["flop"], 2000);
        assert!(events[2]["args"].get("flop").is_none());
        assert_eq!(events[3]["args"]["GB/s"], 10.0);
    }
}
