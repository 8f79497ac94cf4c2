//! Processes that test ops for `netcl doctor`: some drivers build only one program at a time per process, regardless of threads.
//!
//! A worker reads lines `<index of the op> <storage type>`. It answers with a line `.` per case, and one line of JSON, [`Answer`]. If a worker dies,
//! for instance in a driver, its op has failed, and a new worker replaces it.

use super::Args;
use netcl::device::Capabilities;
use netcl::kernel::tune::Suspect;
use netcl::prelude::*;
use netcl::tensor::ops::OpEntry;
use netcl::tensor::suite::{Here, Reach, Tester, Verdict};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A worker's result for one op, and everything that it avoids by now.
#[derive(Serialize, Deserialize)]
struct Answer {
    verdict: Verdict,
    avoided: Vec<Suspect>,
}

/// Answers requests from stdin until it ends.
pub fn serve(device: &Device, ops: &'static [OpEntry], reach: Reach) -> Result<()> {
    let mut tester = Here::new(device, ops, reach)?;
    let broken = |e: &std::io::Error| Error::io("writing to", Path::new("stdout"), e);
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|e| Error::io("reading", Path::new("stdin"), &e))?;
        let asked =
            line.split_once(' ').and_then(|(op, dtype)| Some((op.parse().ok()?, DType::parse(dtype)?)));
        let Some((op, dtype)) = asked else {
            return Err(Error::format(format!("{line:?} is not an op and a storage type")));
        };
        let mut stdout = std::io::stdout();
        let dot = || {
            // If nobody reads the output, writing the next line fails.
            let _ = std::io::stdout().write_all(b".\n");
        };
        let verdict = tester.run(op, dtype, &dot);
        let answer = Answer { verdict, avoided: tester.avoided() };
        let text = serde_json::to_string(&answer)
            .map_err(|e| Error::internal(format!("cannot serialize an answer: {e}")))?;
        writeln!(stdout, "{text}").and_then(|()| stdout.flush()).map_err(|e| broken(&e))?;
    }
    Ok(())
}

/// A testing process.
struct Process {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A worker, which is restarted when it dies.
struct Worker {
    /// Program and arguments.
    command: Vec<OsString>,
    ops: &'static [OpEntry],
    process: Option<Process>,
    avoided: Vec<Suspect>,
}

impl Worker {
    fn new(command: Vec<OsString>, ops: &'static [OpEntry]) -> Self {
        Self { command, ops, process: None, avoided: Vec::new() }
    }

    fn start(&self) -> std::io::Result<Process> {
        let gone = || std::io::Error::other("no pipe");
        let (program, arguments) = self.command.split_first().ok_or_else(gone)?;
        let mut command = Command::new(program);
        let pipes =
            command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = pipes.spawn()?;
        let to = child.stdin.take().ok_or_else(gone)?;
        let from = BufReader::new(child.stdout.take().ok_or_else(gone)?);
        Ok(Process { child, to, from })
    }

    fn ask(&mut self, op: usize, dtype: DType, watch: &dyn Fn()) -> std::io::Result<Answer> {
        if self.process.is_none() {
            self.process = Some(self.start()?);
        }
        let Some(process) = &mut self.process else { return Err(std::io::Error::other("no process")) };
        writeln!(process.to, "{op} {dtype}")?;
        let mut line = String::new();
        loop {
            line.clear();
            if process.from.read_line(&mut line)? == 0 {
                let status = process.child.wait()?;
                return Err(std::io::Error::other(format!("the process that tested it ended: {status}")));
            }
            if line.trim() != "." {
                return serde_json::from_str(&line).map_err(std::io::Error::other);
            }
            watch();
        }
    }
}

impl Tester for Worker {
    fn run(&mut self, op: usize, dtype: DType, watch: &dyn Fn()) -> Verdict {
        match self.ask(op, dtype, watch) {
            Ok(answer) => {
                self.avoided = answer.avoided;
                answer.verdict
            }
            Err(e) => {
                self.process = None;
                let op = self.ops.get(op).map_or("", |op| op.name).to_owned();
                Verdict { op, failure: Some(format!("in {dtype}: {e}")), ..Verdict::default() }
            }
        }
    }
    fn avoided(&mut self) -> Vec<Suspect> {
        std::mem::take(&mut self.avoided)
    }
}

/// Returns whether to divide a self-test between processes. This helps only on devices whose driver compiles kernels.
pub fn wanted(args: &Args, device: &Capabilities, threads: usize) -> bool {
    threads > 1 && !args.worker && !device.simulated
}

/// Starts one worker for `device` per requested thread.
///
/// # Errors
/// `Io` if the program's own executable cannot be found.
pub fn all(
    args: &Args,
    device: &str,
    ops: &'static [OpEntry],
    threads: usize,
) -> Result<Vec<Box<dyn Tester>>> {
    let program = std::env::current_exe().map_err(|e| Error::io("finding", Path::new("this program"), &e))?;
    let mut command: Vec<OsString> = vec![program.into(), "doctor".into(), "--worker".into()];
    command.extend(["--device".into(), device.into()]);
    if args.all_candidates {
        command.push("--all-candidates".into());
    }
    if let Some(part) = &args.op {
        command.extend(["--op".into(), part.into()]);
    }
    Ok((0..threads).map(|_| -> Box<dyn Tester> { Box::new(Worker::new(command.clone(), ops)) }).collect())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use netcl::tensor::ops::OPS;
    use std::cell::Cell;

    fn shell(script: &str) -> Worker {
        Worker::new(["/bin/sh", "-c", script].map(Into::into).to_vec(), OPS)
    }

    #[test]
    fn a_worker_answers_in_json_with_a_dot_for_every_case() {
        let verdict = Verdict { op: "x".into(), cases: 2, ..Verdict::default() };
        let answer = serde_json::to_string(&Answer { verdict, avoided: vec![Suspect::default()] }).unwrap();
        let mut worker = shell(&format!("while read line; do echo .; echo .; echo '{answer}'; done"));
        for _ in 0..3 {
            let dots = Cell::new(0);
            let found = worker.run(0, DType::F32, &|| dots.set(dots.get() + 1));
            assert_eq!((found.cases, found.failure, dots.get()), (2, None, 2));
        }
        assert_eq!(worker.avoided().len(), 1);
    }

    #[test]
    fn one_that_dies_is_a_finding_and_is_started_again() {
        let mut worker = shell("read line; echo .; kill -SEGV $$");
        for _ in 0..2 {
            let found = worker.run(0, DType::Bf16, &|| ());
            let failure = found.failure.unwrap();
            assert!(failure.contains("in bf16: the process that tested it ended: signal: 11"), "{failure}");
            assert_eq!(found.op, OPS[0].name);
        }
        let found = Worker::new(vec!["/no/such/program".into()], OPS).run(0, DType::F32, &|| ());
        assert!(found.failure.is_some());
    }
}
