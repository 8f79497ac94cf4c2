//! Forked processes: a child does not have its parent's threads.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, clippy::exit, reason = "a test")]

use aethercl::{Access, Arg, Includes, LaunchOptions, Memory, NdRange, Program, Source};
use fork::{Fork, fork};
use std::time::{Duration, Instant};

/// Runs a launch long enough for several threads, twice. Threads are used from a kernel's second launch on.
fn sum(program: &Program, memory: &Memory, at: u64) -> f32 {
    let args = [Arg::Buffer { address: at, bytes: 4096 * 4, access: Access::Write }];
    let options = LaunchOptions { threads: 4, ..LaunchOptions::default() };
    for _ in 0..2 {
        program.launch(memory, "walk", &args, NdRange::line(4096, 64), &options).unwrap();
    }
    let mut bytes = vec![0; 4096 * 4];
    memory.read(at, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).sum()
}

#[test]
fn a_child_of_a_process_that_used_the_simulator_computes() {
    let text = "__kernel void walk(__global float *x) {\n\
        float v = 1.0f; for (int i = 0; i < 300; i++) v = v * 0.5f + 0.5f; x[get_global_id(0)] = v; }";
    let program = Program::build(&Source { name: "fork.cl", text }, "", &Includes::none()).unwrap();
    let memory = Memory::new(1 << 20);
    let at = memory.allocate(4096 * 4, "x").unwrap();
    assert_eq!(sum(&program, &memory, at), 4096.0);
    let answer = std::env::temp_dir().join(format!("aethercl-fork-{}", std::process::id()));
    let child = match fork() {
        Ok(Fork::Parent(child)) => child,
        Ok(Fork::Child) => {
            std::fs::write(&answer, sum(&program, &memory, at).to_string()).unwrap();
            std::process::exit(0)
        }
        Err(e) => panic!("no fork: {e}"),
    };
    let begun = Instant::now();
    let text = loop {
        match std::fs::read_to_string(&answer) {
            Ok(text) if !text.is_empty() => break text,
            _ if begun.elapsed() > Duration::from_secs(60) => {
                std::process::Command::new("kill").args(["-9", &child.to_string()]).status().unwrap();
                panic!("the child hangs");
            }
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    std::fs::remove_file(&answer).unwrap();
    assert_eq!(text, "4096");
    assert_eq!(sum(&program, &memory, at), 4096.0, "the parent keeps its own threads");
}
