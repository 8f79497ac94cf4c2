//! llama.cpp as a peer: its `llama-bench`, and `llama-batched-bench` if it is in the same folder, on the same file.

use netcl::prelude::*;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The requested measurement.
pub struct RequestedMeasurement<'a> {
    pub model: &'a Path,
    pub prompt: usize,
    pub tokens: usize,
    pub batches: &'a [usize],
    pub rounds: usize,
    /// Additional arguments of llama-bench.
    pub more: &'a [String],
}

/// The peer's speed in tokens per second.
#[derive(Clone, Debug, PartialEq)]
pub struct Speed {
    /// `pp` or `tg`, and the number of texts in a batch.
    pub test: (&'static str, usize),
    pub tokens_per_s: f64,
}

/// Runs the program at `path`, and the one for batches.
///
/// # Errors
/// `Unsupported` if a program does not start, fails or prints nothing, with the end of its output.
pub fn run(path: &Path, asked: &RequestedMeasurement<'_>) -> Result<Vec<Speed>> {
    let number = |n: usize| n.to_string();
    let mut command = Command::new(path);
    command.arg("-m").arg(asked.model).args(["-ngl", "99", "-o", "jsonl"]);
    command.args(["-p", &number(asked.prompt), "-n", &number(asked.tokens), "-r", &number(asked.rounds)]);
    let mut out = speeds(&lines(path, command.args(asked.more))?);
    let several: Vec<usize> = asked.batches.iter().copied().filter(|batch| *batch > 1).collect();
    let batched = batched_program(path);
    if let (Some(most), true) = (several.iter().max(), batched.exists()) {
        let mut command = Command::new(&batched);
        command.arg("-m").arg(asked.model).args(["-ngl", "99", "--output-format", "jsonl", "-npp", "1"]);
        let list = several.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let room = (most * (asked.tokens + 1)).next_multiple_of(256);
        command.args(["-npl", &list, "-ntg", &number(asked.tokens), "-c", &number(room)]);
        out.extend(speeds(&lines(&batched, &mut command)?));
    }
    match out.is_empty() {
        true => Err(Error::unsupported(format!("--peer {}: it printed no measurement", path.display()))),
        false => Ok(out),
    }
}

/// Returns the program for batches in the same folder.
fn batched_program(path: &Path) -> PathBuf {
    let extension = path.extension().map_or(String::new(), |e| format!(".{}", e.to_string_lossy()));
    path.with_file_name(format!("llama-batched-bench{extension}"))
}

/// Returns the JSON lines that a program prints.
fn lines(path: &Path, command: &mut Command) -> Result<Vec<Value>> {
    let fail = |why: &str| Error::unsupported(format!("--peer {}: {why}", path.display()));
    let out = command.stdin(Stdio::null()).output().map_err(|e| fail(&e.to_string()))?;
    if !out.status.success() {
        let text = String::from_utf8_lossy(&out.stderr);
        let last: Vec<&str> = text.lines().rev().take(4).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        return Err(fail(&format!("{}\n{}", out.status, last.join("\n"))));
    }
    let text = String::from_utf8_lossy(&out.stdout);
    Ok(text.lines().filter_map(|line| serde_json::from_str(line.trim()).ok()).collect())
}

/// Returns the speeds in lines of either program.
fn speeds(lines: &[Value]) -> Vec<Speed> {
    let of = |line: &Value| {
        let count = |key: &str| line[key].as_u64();
        if let Some(texts) = count("pl") {
            return Some(Speed { test: ("tg", texts as usize), tokens_per_s: line["speed_tg"].as_f64()? });
        }
        let test = match (count("n_prompt")?, count("n_gen")?) {
            (_, 0) => "pp",
            (0, _) => "tg",
            _ => return None,
        };
        Some(Speed { test: (test, 1), tokens_per_s: line["avg_ts"].as_f64()? })
    };
    lines.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lines_of_both_programs_are_read() {
        let lines = [
            json!({"n_prompt": 512, "n_gen": 0, "avg_ts": 900.5, "build_commit": "x"}),
            json!({"n_prompt": 0, "n_gen": 128, "avg_ts": 70.25}),
            json!({"n_prompt": 512, "n_gen": 128, "avg_ts": 1.0}),
            json!({"pp": 1, "tg": 128, "pl": 8, "speed_tg": 300.0}),
            json!({"other": 1}),
        ];
        let speed = |test, tokens_per_s| Speed { test, tokens_per_s };
        assert_eq!(
            speeds(&lines),
            [speed(("pp", 1), 900.5), speed(("tg", 1), 70.25), speed(("tg", 8), 300.0)]
        );
        assert_eq!(batched_program(Path::new("/a/llama-bench")), Path::new("/a/llama-batched-bench"));
        assert_eq!(batched_program(Path::new("b/llama-bench.exe")), Path::new("b/llama-batched-bench.exe"));
    }

    #[cfg(unix)]
    #[test]
    fn a_peer_that_fails_says_why() {
        use std::os::unix::fs::PermissionsExt;
        let dir = std::env::temp_dir().join(format!("netcl-llama-bench-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("llama-bench");
        let asked = RequestedMeasurement {
            model: Path::new("m.gguf"),
            prompt: 4,
            tokens: 2,
            batches: &[1, 2],
            rounds: 1,
            more: &[],
        };
        let script = |name: &str, text: &str| {
            let path = dir.join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        assert!(run(&path, &asked).unwrap_err().message().contains("llama-bench: "));
        script("llama-bench", "echo no such model >&2; exit 3");
        let error = run(&path, &asked).unwrap_err();
        assert!(error.message().contains("no such model"), "{error}");
        script("llama-bench", "echo loading");
        assert!(run(&path, &asked).unwrap_err().message().contains("no measurement"));
        script("llama-bench", r#"echo '{"n_prompt":4,"n_gen":0,"avg_ts":'$#'}'"#);
        script("llama-batched-bench", r#"echo '{"pl":2,"speed_tg":7}'"#);
        let found = run(&path, &asked).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].tokens_per_s, 12.0);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
