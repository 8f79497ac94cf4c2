//! The peer: a Python child process that times PyTorch, with one JSON object per line in each direction (`tools/peer.py` documents them).

use netcl::prelude::*;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const SCRIPT: &str = include_str!("../../../../tools/peer.py");

/// A running peer.
pub struct Peer {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    name: String,
    /// `cpu` or `cuda`: the peer's device that is compared with this one.
    device: &'static str,
}

/// One reply.
pub struct Reply {
    pub peer: String,
    pub samples_ms: Vec<f64>,
    /// The implementation that it chose, if it has several.
    pub backend: Option<String>,
    /// The time of a call without the timed graph, if there was a graph.
    pub called_ms: Option<f64>,
    /// Peak device memory in bytes.
    pub memory: Option<u64>,
}

impl Peer {
    /// Starts the peer that `--peer` names: `none`, `auto`, or a Python. With `auto`, a peer that does not start, or lacks a comparable device, is
    /// ignored.
    ///
    /// # Errors
    /// `Unsupported` for a named Python without PyTorch.
    pub fn open(name: &str, device: &Device) -> Result<Option<Self>> {
        let (python, asked) = match name {
            "none" => return Ok(None),
            "auto" => ("python3", false),
            name => (name, true),
        };
        let mut command = Command::new(python);
        command.args(["-c", SCRIPT]);
        match Self::start(&mut command, !device.capabilities().is_cpu()) {
            Ok(peer) => Ok(Some(peer)),
            Err(why) if asked => Err(Error::unsupported(format!("--peer {python}: {why}"))),
            Err(why) => {
                tracing::debug!("no peer: {why}");
                Ok(None)
            }
        }
    }

    pub(super) fn start(command: &mut Command, gpu: bool) -> Result<Self, String> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| e.to_string())?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("its input and output are missing".into());
        };
        let mut peer = Self {
            child,
            to,
            from: BufReader::new(from),
            name: String::new(),
            device: if gpu { "cuda" } else { "cpu" },
        };
        let hello = peer.exchange(&json!({ "op": "hello" })).map_err(|_| "PyTorch is missing".to_owned())?;
        if gpu && hello["cuda"].is_null() {
            return Err("its PyTorch finds no GPU to compare with this one".into());
        }
        let version = hello["peer"].as_str().unwrap_or("torch").to_owned();
        peer.name =
            if gpu { format!("torch {} on cuda", hello["torch"].as_str().unwrap_or("?")) } else { version };
        Ok(peer)
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Times `request`. The inner error is the peer's refusal, such as a missing op.
    ///
    /// # Errors
    /// `Io` if the peer has ended.
    pub fn ask(&mut self, request: &Value, samples: usize) -> Result<Result<Reply, String>> {
        let mut request = request.clone();
        request["device"] = self.device.into();
        request["repeats"] = samples.into();
        let reply = self.exchange(&request)?;
        if let Some(error) = reply["error"].as_str() {
            return Ok(Err(error.into()));
        }
        let samples_ms =
            reply["samples_ms"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        Ok(Ok(Reply {
            peer: reply["peer"].as_str().unwrap_or("torch").into(),
            samples_ms,
            backend: reply["backend"].as_str().map(Into::into),
            called_ms: reply["called_ms"].as_f64(),
            memory: reply["memory_peak"].as_u64(),
        }))
    }

    /// Computes `request`, whose inputs and result are files of f32. The inner error is the peer's refusal.
    ///
    /// # Errors
    /// `Io` if the peer has ended.
    pub fn evaluate(&mut self, mut request: Value) -> Result<Result<(), String>> {
        request["of"] = request["op"].take();
        request["op"] = "evaluate".into();
        request["device"] = self.device.into();
        let reply = self.exchange(&request)?;
        Ok(reply["error"].as_str().map_or(Ok(()), |e| Err(e.into())))
    }

    fn exchange(&mut self, request: &Value) -> Result<Value> {
        let gone = |why: String| Error::new(ErrorKind::Io, format!("the peer has ended: {why}"));
        writeln!(self.to, "{request}").and_then(|()| self.to.flush()).map_err(|e| gone(e.to_string()))?;
        let mut line = String::new();
        let read = self.from.read_line(&mut line).map_err(|e| gone(e.to_string()))?;
        if read == 0 {
            return Err(gone("it closed its output".into()));
        }
        serde_json::from_str(&line).map_err(|e| gone(format!("it answered {line:?}: {e}")))
    }
}

/// The child ends with its input, or is stopped.
impl Drop for Peer {
    fn drop(&mut self) {
        let asked = writeln!(self.to, "{{\"op\":\"quit\"}}").and_then(|()| self.to.flush());
        if asked.is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
