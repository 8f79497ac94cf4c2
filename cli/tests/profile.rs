//! `--profile`: the table agrees with the trace, and all events of the trace share one clock.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use crate::common;

use common::{device, folder, netcl, texts, tiny_run, write_text};
use serde_json::Value;
use std::path::Path;

/// An event of a trace: category, name, track, start and end in microseconds, arguments.
struct Event {
    category: String,
    name: String,
    track: (u64, u64),
    start: f64,
    end: f64,
    args: Value,
}

struct Trace {
    about: Value,
    tracks: Vec<(String, (u64, u64))>,
    events: Vec<Event>,
}

impl Trace {
    fn read(path: &Path) -> Self {
        let value: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let all = value["traceEvents"].as_array().unwrap();
        let track = |e: &Value| (e["pid"].as_u64().unwrap(), e["tid"].as_u64().unwrap_or(0));
        let text = |v: &Value| v.as_str().unwrap().to_owned();
        let tracks = all.iter().filter(|e| e["name"] == "thread_name");
        let spans = all.iter().filter(|e| e["ph"] == "X");
        Self {
            about: value["otherData"].clone(),
            tracks: tracks.map(|e| (text(&e["args"]["name"]), track(e))).collect(),
            events: spans
                .map(|e| {
                    let (start, length) = (e["ts"].as_f64().unwrap(), e["dur"].as_f64().unwrap());
                    Event {
                        category: text(&e["cat"]),
                        name: text(&e["name"]),
                        track: track(e),
                        start,
                        end: start + length,
                        args: e["args"].clone(),
                    }
                })
                .collect(),
        }
    }

    fn of<'a>(&'a self, category: &'a str) -> impl Iterator<Item = &'a Event> {
        self.events.iter().filter(move |e| e.category == category)
    }

    /// Returns the events of a track by start time.
    fn on(&self, name: &str) -> Vec<&Event> {
        let (_, track) = self.tracks.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no {name}"));
        self.events.iter().filter(|e| e.track == *track).collect()
    }

    /// Checks the properties of every trace.
    fn check(&self) {
        let names: Vec<&str> = self.tracks.iter().map(|(n, _)| n.as_str()).collect();
        assert_eq!(names, ["host", "compute queue", "copy queue"]);
        let span = self.about["span_us"].as_f64().unwrap();
        let error = self.about["clock_error_us"].as_f64().unwrap();
        for (name, _) in &self.tracks {
            let events = self.on(name);
            assert!(events.windows(2).all(|w| w[0].start <= w[1].start), "{name} is out of order");
            for e in &events {
                assert!(e.start >= 0.0 && e.end >= e.start, "{name}: {} {} {}", e.name, e.start, e.end);
                assert!(e.end <= span + error + 0.01, "{name}: {} ends at {} of {span}", e.name, e.end);
            }
        }
        for kernel in self.of("kernel") {
            let a = &kernel.args;
            assert!(a["bytes"].as_u64().unwrap() > 0 && !a["kernel"].as_str().unwrap().is_empty());
            assert!(a["global"][0].as_u64().unwrap() >= a["local"][0].as_u64().unwrap());
        }
        assert!(self.of("kernel").any(|e| e.args["flop"].as_u64().is_some_and(|n| n > 0)));
    }

    /// Returns the launches and milliseconds of all kernels together.
    fn kernels(&self) -> (u64, f64) {
        let ms: f64 = self.of("kernel").map(|e| e.end - e.start).sum::<f64>() * 1e-3;
        (self.of("kernel").count() as u64, ms)
    }
}

/// A row of the table: total milliseconds, calls, kernel. The last line has the sums.
type Row = (f64, u64, String);

fn table(text: &str) -> (Vec<Row>, (u64, f64)) {
    let number = |word: &str| word.parse::<f64>().unwrap_or_else(|e| panic!("{e}: {word:?}"));
    let mut lines = text.lines().skip_while(|l| !(l.contains("ms/step") && l.contains("kernel"))).skip(1);
    let mut rows = Vec::new();
    for line in lines.by_ref() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.contains(&"launches,") {
            return (rows, (number(words[5]) as u64, number(words[0])));
        }
        rows.push((number(words[0]), number(words[4]) as u64, (*words.last().unwrap()).to_owned()));
    }
    panic!("table missing in {text}");
}

fn check_table(err: &str, trace: &Trace) {
    let (rows, (calls, ms)) = table(err);
    assert!(rows.len() > 3 && rows.windows(2).all(|w| w[0].0 >= w[1].0), "the most expensive first: {err}");
    assert_eq!(calls, rows.iter().map(|r| r.1).sum::<u64>());
    let (traced, traced_ms) = trace.kernels();
    assert_eq!(calls, traced);
    // The trace's times have three decimals of a microsecond, the table's three of a millisecond.
    assert!((ms - traced_ms).abs() <= 1e-3 + 1e-6 * traced as f64, "{ms} ms, in the trace {traced_ms}");
    for (ms, calls, name) in rows {
        let own: Vec<f64> = trace.of("kernel").filter(|e| e.name == name).map(|e| e.end - e.start).collect();
        assert_eq!(own.len() as u64, calls, "{name}");
        let sum = own.iter().sum::<f64>() * 1e-3;
        assert!((ms - sum).abs() <= 1e-3 + 1e-6 * calls as f64, "{name}: {ms} ms, in the trace {sum}");
    }
}

#[test]
fn a_training_is_profiled_with_and_without_a_graph() {
    let dir = folder("profile");
    let data = dir.join("text.txt");
    write_text(&data);
    let mut launches = Vec::new();
    for graph in ["on", "off"] {
        let out = dir.join(graph);
        let mut command = netcl();
        command.args(tiny_run(&data, &out, 16)).args(["--graph", graph, "--eval-every", "8"]);
        command.args(["--profile", "--profile-steps", "8"]);
        let (stdout, err) = texts(&command.output().unwrap());
        assert!(stdout.contains("finished after 16 steps"), "{stdout}{err}");
        assert!(err.contains("profile of steps 3 to 10"), "{err}");
        assert_eq!(err.contains("replayed from a graph"), graph == "on", "{err}");
        let trace = Trace::read(&out.join("trace.json"));
        trace.check();
        check_table(&err, &trace);
        assert_eq!((&trace.about["steps"][0], &trace.about["steps"][1]), (&3.into(), &10.into()));
        assert_eq!(trace.about["replayed"], graph == "on");
        for name in ["data", "upload", "enqueue", "read loss", "evaluation", "checkpoint"] {
            assert!(trace.on("host").iter().any(|e| e.name == name), "the host track lacks {name}");
        }
        let copied: Vec<&str> = trace.on("copy queue").iter().map(|e| e.name.as_str()).collect();
        assert!(copied.iter().filter(|n| **n == "upload").count() >= 8, "{copied:?}");
        assert!(copied.contains(&"download"), "{copied:?}");
        assert!(trace.on("compute queue").iter().filter(|e| e.category == "kernel").count() > 8 * 20);
        launches.push(trace.kernels().0);
        let report = std::fs::read_to_string(out.join("report.html")).unwrap();
        assert!(report.contains("matmul"), "the report contains the time per kernel");
    }
    assert_eq!(launches[0], launches[1], "a replayed step shows the same launches as an eager one");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_file_can_be_named_and_a_short_run_says_that_there_is_no_profile() {
    let dir = folder("profile-file");
    let data = dir.join("text.txt");
    write_text(&data);
    let named = dir.join("here.json");
    let mut command = netcl();
    command
        .args(tiny_run(&data, &dir.join("a"), 4))
        .args(["--eval-every", "0", "--warmup", "1", "--profile"])
        .arg(&named);
    let (out, err) = texts(&command.output().unwrap());
    assert!(out.contains("finished") && err.contains("profile of steps 3 to 4"), "{err}");
    Trace::read(&named).check();
    let mut command = netcl();
    command.args(tiny_run(&data, &dir.join("b"), 2)).args([
        "--eval-every",
        "0",
        "--warmup",
        "1",
        "--profile",
    ]);
    let (out, err) = texts(&command.output().unwrap());
    assert!(out.contains("finished") && err.contains("no profile: the run ended before step 3"), "{err}");
    assert!(!dir.join("b/trace.json").exists());
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_benchmark_of_training_is_profiled_after_it_is_timed() {
    let dir = folder("profile-bench");
    let trace = dir.join("trace.json");
    let args = "bench train --preset char-cpu --layers 1 --heads 2 --width 32 --context 16 --batch 4 --rounds 1 --peer none --json --profile";
    let mut command = netcl();
    command.args(args.split(' ')).arg(&trace).args(["--device", &device()]);
    let output = command.output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{err}");
    let lines: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let kernels: Vec<&Value> = lines.iter().filter(|l| l["op"] == "profile").collect();
    let trace = Trace::read(&trace);
    trace.check();
    let (calls, ms) = trace.kernels();
    assert_eq!(kernels.iter().map(|k| k["calls"].as_u64().unwrap()).sum::<u64>(), calls);
    let sum: f64 = kernels.iter().map(|k| k["ms"].as_f64().unwrap()).sum();
    assert!((sum - ms).abs() <= 1e-6 * calls as f64 + 1e-6, "{sum} {ms}");
    assert!(kernels.iter().any(|k| k["share_of_peak"].as_f64().is_some_and(|s| s > 0.0)));
    assert!(trace.on("host").iter().filter(|e| e.name == "enqueue").count() == 3);
    std::fs::remove_dir_all(dir).unwrap();
}
