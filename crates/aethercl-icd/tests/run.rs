//! `aethercl run` with a C program that finds the driver the same way as a loader.
#![allow(clippy::unwrap_used, clippy::panic)] // tests

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Doubles a buffer; with an argument, it writes one element too many.
const PROGRAM: &str = include_str!("twice.c");

/// Returns the library that cargo built next to the program.
fn library() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_BIN_EXE_aethercl")).parent().unwrap();
    let names = ["deps/libaethercl_icd.so", "libaethercl_icd.so"];
    names.iter().map(|name| folder.join(name)).find(|path| path.is_file())
}

fn run(options: &[&str], program: &[&Path], more: &[&str]) -> Option<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aethercl"));
    command.arg("run").args(options).arg("--").args(program).args(more);
    command.env("AETHERCL_LIBRARY", library()?).env("AETHERCL_PROFILES", "teaching");
    Some(command.output().unwrap())
}

fn program(text: &str, folder: &Path) -> Option<PathBuf> {
    let (source, program) = (folder.join("twice.c"), folder.join("twice"));
    std::fs::write(&source, text).unwrap();
    let built = Command::new("cc").arg(&source).arg("-o").arg(&program).arg("-ldl").output().ok()?;
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(program)
}

#[test]
fn a_program_runs_and_is_told_about() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = program(PROGRAM, folder.path()).filter(|_| library().is_some()) else {
        println!("skipped: a C compiler or the shared library is missing");
        return;
    };
    let json = folder.path().join("it has blanks.json");
    let out = run(&["--check", "all", "--json", json.to_str().unwrap()], &[&program], &[]).unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(
        (out.status.code(), String::from_utf8_lossy(&out.stdout).as_ref()),
        (Some(0), "126\n"),
        "{said}"
    );
    assert!(said.contains("twice") && said.ends_with("nothing found\n"), "{said}");
    assert!(said.contains("1 read on teaching: 256 bytes"), "{said}");
    assert!(said.contains("not released at the end: command queue 1, context 1, kernel 1"), "{said}");
    let summary: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(summary["kernels"][0]["launches"], 1);
    assert!(summary["kernels"][0]["ns"].as_u64().unwrap() > 0);

    the_report_has_everything(&summary["report"]);

    let out = run(&["--check", "bounds"], &[&program], &["too many"]).unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(7), "{said}");
    assert!(said.contains("<source>:1:56: read-outside") && said.contains("in kernel twice"), "{said}");
}

/// Checks calls, commands, lines and memory of that run.
fn the_report_has_everything(report: &serde_json::Value) {
    let report: aethercl::report::RunReport = serde_json::from_value(report.clone()).unwrap();
    let named = |name: &str| report.calls.iter().filter(|c| c.name == name).count();
    assert_eq!((named("clBuildProgram"), named("clEnqueueNDRangeKernel"), report.calls_left_out), (1, 1, 0));
    assert!(report.calls.windows(2).all(|w| w[0].start_ns <= w[1].start_ns), "one thread, in order");
    assert!(report.functions.iter().all(|f| f.calls > 0 && f.errors == 0));
    let [device] = &report.devices[..] else { panic!("{:?}", report.devices) };
    let kinds: Vec<&str> = device.commands.iter().map(|c| c.kind.as_str()).collect();
    assert_eq!((kinds, device.name.as_str()), (vec!["kernel", "copy out"], "teaching"));
    let times: Vec<u64> = device
        .commands
        .iter()
        .flat_map(|c| [c.queued_ns.min(c.submitted_ns), c.submitted_ns, c.start_ns, c.end_ns])
        .collect();
    assert!(times[..4].is_sorted() && times[4..].is_sorted() && times[3] <= times[6], "{times:?}");
    assert!(device.commands.iter().all(|c| c.queued_ns <= c.submitted_ns));
    let kernel = &device.kernels[0];
    assert_eq!((kernel.name.as_str(), kernel.lines.len(), kernel.lines[0].did.executions), ("twice", 1, 64));
    assert_eq!((kernel.all.global_sectors, kernel.all.ideal_sectors), (16, 16));
    assert!(
        device.sources.iter().any(|s| s.name == kernel.lines[0].file && s.text.contains("kernel void twice"))
    );
    assert_eq!(device.memory.events[0].name, "buffer of 256 bytes");
    assert_eq!((device.memory.peak, report.leaked["memory object"]), (256, 1));
}

#[test]
fn a_page_is_written_and_what_a_program_says_is_no_markup() {
    let folder = tempfile::tempdir().unwrap();
    let text = PROGRAM.replace("kernel void twice", "/* </script><b id=bad> */ kernel void twice");
    let Some(program) = program(&text, folder.path()).filter(|_| library().is_some()) else {
        println!("skipped: a C compiler or the shared library is missing");
        return;
    };
    let html = folder.path().join("report.html");
    let out = run(&["--html", html.to_str().unwrap()], &[&program], &["</script>"]).unwrap();
    // The default checks of a run find the access past the end.
    assert_eq!(out.status.code(), Some(7), "{}", String::from_utf8_lossy(&out.stderr));
    let page = std::fs::read_to_string(html).unwrap();
    let (_, data) = page.split_once("id=\"data\">").unwrap();
    let (data, _) = data.split_once("</script>").unwrap();
    let report: aethercl::report::RunReport = serde_json::from_str(data).unwrap();
    assert!(report.title.ends_with("twice </script>"), "{}", report.title);
    let source = &report.devices[0].sources[0].text;
    assert!(source.contains("</script><b id=bad>"), "{source}");
    assert!(!page.contains("<b id=bad>"));
}

#[test]
fn a_kernel_that_never_ends_is_named_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let endless = PROGRAM
        .replace("x[get_global_id(0)] *= 2; }", "\\n  if (get_global_id(0) == 3) while (x[0] == 0); }");
    let Some(program) = program(&endless, folder.path()).filter(|_| library().is_some()) else {
        println!("skipped: a C compiler or the shared library is missing");
        return;
    };
    for checks in ["none", "all"] {
        let out = run(&["--check", checks, "--timeout", "0.3"], &[&program], &[]).unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        // The program's own exit code is possible: its read runs after the launch in the queue and succeeds.
        assert!(matches!(out.status.code(), Some(6 | 17)), "{:?} {said}", out.status);
        assert!(said.contains("kernel twice") && said.contains("<source>:2:"), "{said}");
    }
}

#[test]
fn what_cannot_be_done_is_said() {
    if library().is_none() {
        println!("skipped: the shared library is missing");
        return;
    }
    let out = run(&["--check", "luck"], &[Path::new("true")], &[]).unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("unknown check \"luck\""));
    let out = run(&[], &[Path::new("there-is-no-such-program")], &[]).unwrap();
    assert_eq!(out.status.code(), Some(127));
    let out = run(&[], &[Path::new("sh")], &["-c", "exit 5"]).unwrap();
    assert_eq!(out.status.code(), Some(5));
    assert!(String::from_utf8_lossy(&out.stderr).contains("did not use a simulated GPU"));
}

#[test]
fn devices_are_compared_also_with_changed_figures() {
    let folder = tempfile::tempdir().unwrap();
    let (Some(program), Some(library)) = (program(PROGRAM, folder.path()), library()) else {
        println!("skipped: no C compiler, or no library next to the program");
        return;
    };
    let compare = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_aethercl"));
        command.arg("compare").args(options).arg("--").arg(&program);
        command.env("AETHERCL_LIBRARY", &library).output().unwrap()
    };
    let out = compare(&["--profile", "teaching,h200", "--set", "clock=100"]);
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(
        (out.status.code(), String::from_utf8_lossy(&out.stdout).as_ref()),
        (Some(0), "126\n"),
        "{text}"
    );
    let heads = text.lines().find(|l| l.starts_with("kernel")).unwrap();
    assert_eq!(heads.split("  ").filter(|h| !h.trim().is_empty()).count(), 5, "{text}");
    assert!(heads.contains("teaching clock=100") && heads.contains("h200 clock=100"), "{text}");
    assert!(text.lines().any(|l| l.starts_with("twice") && l.matches("s (").count() == 4), "{text}");
    let wrong = compare(&["--set", "l9=3"]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("does not have a value"), "{wrong:?}");
}
