//! Compiles the grammar of a request first in a separate process, which has a budget of time and memory and can be killed.
//!
//! A schema of a few hundred bytes can occupy its compiler for hours, or exhaust the memory or the stack. The server compiles only grammars that the
//! process has compiled within the budget. The process does not know the vocabulary: its tokens are single bytes.

use crate::error::{ApiError, ApiResult};
use netcl::llm::grammar::Grammars;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// CPU seconds for the compilation of one grammar.
const SECONDS: u64 = 2;
/// Bytes of memory for the compilation.
const MEMORY: u64 = 256 << 20;
/// Wall-clock limit for compiling all grammars of a request.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(10);
/// Smaller than the stack of the server's threads: a compilation that fits here also fits there.
const STACK: usize = 1 << 20;
/// Maximum bytes of a schema that is compiled without a check if all of its keywords are simple.
const PLAIN: usize = 4 << 10;
/// Maximum number of vocabulary ids that a check supports.
const MAX_IDS: u64 = 4 << 20;
/// Prefix that marks the answer in the other output of the program.
const MARK: &str = "netcl-grammar ";

/// The program that checks grammars: it calls [`check_grammar`].
#[derive(Clone, Debug)]
pub struct Checker {
    /// Its path.
    pub program: PathBuf,
    /// Command-line arguments.
    pub arguments: Vec<String>,
}

/// Time limit of a request: it ends at a deadline, or when the client disconnects.
#[derive(Clone, Debug)]
pub struct Patience {
    gone: Arc<AtomicBool>,
    until: Instant,
}

/// Ends the time limit of a request when it is dropped.
pub struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Patience {
    /// Starts a time limit now. Returns it with the guard that keeps it active.
    pub fn begin() -> (Self, Waiting) {
        let gone = Arc::new(AtomicBool::new(false));
        (Self { gone: Arc::clone(&gone), until: Instant::now() + COMPILE_TIMEOUT }, Waiting(gone))
    }

    /// Returns true if no one waits for the request any more.
    pub fn is_over(&self) -> bool {
        self.gone.load(Ordering::Relaxed) || Instant::now() >= self.until
    }

    fn left(&self, param: &str) -> ApiResult<()> {
        if self.gone.load(Ordering::Relaxed) {
            return Err(ApiError::unavailable("The client has left", 1));
        }
        match Instant::now() < self.until {
            true => Ok(()),
            false => {
                let seconds = COMPILE_TIMEOUT.as_secs();
                Err(ApiError::field(
                    param,
                    format!("{param}: compiling took more than {seconds} s; simplify it"),
                ))
            }
        }
    }
}

/// The input of a compilation.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A JSON schema.
    Schema(&'a Value),
    /// A grammar that the server generated around schemas.
    Lark(&'a str),
}

impl Checker {
    /// Compiles `source` in another process, for `vocab` tokens. Returns the bytes that this took.
    ///
    /// # Errors
    /// 400 for an invalid source or one that exceeds the budget, 503 after the client has disconnected.
    pub fn check(
        &self,
        source: Source<'_>,
        vocab: usize,
        param: &str,
        patience: &Patience,
    ) -> ApiResult<usize> {
        patience.left(param)?;
        let lost =
            |e: std::io::Error| ApiError::internal(format!("cannot start the check of a grammar: {e}"));
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = Killed(command.spawn().map_err(lost)?);
        let question = match source {
            Source::Schema(schema) => json!({ "vocab": vocab, "schema": schema }),
            Source::Lark(text) => json!({ "vocab": vocab, "lark": text }),
        };
        let (input, output) = (child.0.stdin.take(), child.0.stdout.take());
        // Input and output may each be as long as a request.
        let said = std::thread::scope(|scope| {
            let read = scope.spawn(move || {
                let mut text = String::new();
                output.map(|mut output| output.read_to_string(&mut text)).and_then(Result::ok).map(|_| text)
            });
            scope.spawn(move || input.map(|mut input| input.write_all(question.to_string().as_bytes())));
            let status = ended(&mut child.0, param, patience);
            drop(child);
            let text = read.join().ok().flatten().unwrap_or_default();
            status.map(|status| (status, text))
        });
        let (status, text) = said?;
        let answer = text.split_once(MARK).and_then(|(_, rest)| rest.lines().next());
        let answer: Value = answer.and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
        if let Some(error) = answer["error"].as_str() {
            return Err(ApiError::field(param, error));
        }
        answer["bytes"].as_u64().map(|bytes| bytes as usize).ok_or_else(|| over(param, status))
    }
}

/// A process that is killed when this is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Waits for a process.
fn ended(child: &mut Child, param: &str, patience: &Patience) -> ApiResult<ExitStatus> {
    let mut pause = Duration::from_micros(500);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) => patience.left(param)?,
            Err(e) => return Err(ApiError::internal(format!("cannot read the check of a grammar: {e}"))),
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Returns the error of a grammar whose check ended without an answer.
fn over(param: &str, status: ExitStatus) -> ApiError {
    tracing::info!("the check of a grammar ended with {status}");
    let message = format!(
        "{param}: compiling this exceeds {SECONDS} s, {} MiB or the allowed nesting; use fewer or shorter patterns, references, combinations and \
         multiples",
        MEMORY >> 20
    );
    ApiError::field(param, message)
}

/// Limits this process, compiles the source from `input`, and writes the result to `output`. A grammar checker program calls it and exits.
///
/// # Errors
/// Errors from reading and writing.
pub fn check_grammar(mut input: impl Read, mut output: impl Write) -> std::io::Result<()> {
    limit();
    let mut text = String::new();
    input.read_to_string(&mut text)?;
    let before = resident();
    let work = std::thread::Builder::new().stack_size(STACK).spawn(move || compiled(&text))?;
    let made = work.join().unwrap_or_else(|_| Err("compilation failed".into()));
    let answer = match made {
        Ok(bytes) => json!({ "bytes": resident().saturating_sub(before).max(bytes as u64) }),
        Err(error) => json!({ "error": error }),
    };
    writeln!(output, "{MARK}{answer}")?;
    output.flush()
}

fn compiled(question: &str) -> Result<usize, String> {
    let question: Value = serde_json::from_str(question).map_err(|e| e.to_string())?;
    let vocab = question["vocab"].as_u64().unwrap_or(0).min(MAX_IDS) as usize;
    let grammars = Grammars::of_bytes(vocab).map_err(|e| e.message().to_owned())?;
    let made = match question["lark"].as_str() {
        Some(text) => grammars.compile_lark(text),
        None => grammars.compile_schema(&question["schema"]),
    };
    let made = made.map_err(|e| e.message().to_owned())?;
    made.walk(2, 64);
    Ok(made.bytes())
}

/// Returns the peak memory of this process in bytes, if the system reports it.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) << 10
}

#[cfg(unix)]
fn limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, nice, setrlimit};
    let most = |resource, value: u64| {
        let maximum = getrlimit(resource).maximum;
        let value = maximum.map_or(value, |maximum| value.min(maximum));
        // A system without this limit still has the other limits and the wall-clock limit.
        let _ = setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) });
    };
    most(Resource::Cpu, SECONDS);
    most(Resource::Core, 0);
    most(Resource::Data, MEMORY);
    // Other requests have priority.
    let _ = nice(10);
}

#[cfg(not(unix))]
fn limit() {}

/// Returns true if compiling a schema is always cheap: no patterns, no references, no combinations.
pub fn is_plain(schema: &Value) -> bool {
    schema.to_string().len() <= PLAIN && has_plain_keywords(schema)
}

fn has_plain_keywords(schema: &Value) -> bool {
    let Some(fields) = schema.as_object() else { return schema.is_boolean() };
    fields.iter().all(|(key, value)| match key.as_str() {
        "type" | "required" | "enum" | "const" | "title" | "description" | "default" | "examples"
        | "$schema" | "minItems" | "maxItems" | "minLength" | "maxLength" | "minimum" | "maximum" => true,
        "properties" => value.as_object().is_none_or(|all| all.values().all(has_plain_keywords)),
        "items" | "additionalProperties" => has_plain_keywords(value),
        _ => false,
    })
}
