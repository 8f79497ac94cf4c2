//! Running the program from tests.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Returns the program, on the test device.
pub fn netcl() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netcl"));
    command.env("NO_COLOR", "1");
    command
}

/// Returns the device that tests run on.
pub fn device() -> String {
    std::env::var("NETCL_TEST_DEVICE").unwrap_or_else(|_| "auto".into())
}

/// Returns an empty folder for one test.
pub fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("netcl-test-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Writes a short text with some structure.
pub fn write_text(path: &Path) {
    let lines: Vec<String> = (0..400).map(|i| format!("{i} plus {} is {}\n", i + 1, 2 * i + 1)).collect();
    std::fs::write(path, lines.concat()).unwrap();
}

/// Returns the arguments of a run that takes a second.
pub fn tiny_run(data: &Path, out: &Path, steps: u32) -> Vec<String> {
    let fixed = "--preset char-cpu --layers 1 --heads 2 --width 32 --context 16 --batch 4 --warmup 5 --dropout 0.1 --eval-batches 2 --sample-every 0";
    let mut args = vec!["train".to_string()];
    args.extend(fixed.split(' ').map(Into::into));
    args.extend(["--steps".into(), steps.to_string(), "--device".into(), device()]);
    args.extend(["--data".into(), data.display().to_string(), "--out".into(), out.display().to_string()]);
    args
}

/// Returns both streams as text.
pub fn texts(output: &Output) -> (String, String) {
    (String::from_utf8_lossy(&output.stdout).into(), String::from_utf8_lossy(&output.stderr).into())
}
