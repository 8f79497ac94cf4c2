//! Random kernels give the same results on one thread and on several, with and without checks. The checks report nothing.
//!
//! `AETHERCL_GENERATED=COUNT` runs that many more seeds. The comparison with other OpenCL implementations is in
//! `crates/device/tests/differential.rs`.

mod generate;

use aethercl::{Access, Arg, Checks, Includes, LaunchOptions, Memory, NdRange, Program, Source};

fn run(program: &Program, seed: u64, checks: Checks, threads: usize) -> Result<(Vec<u8>, usize), String> {
    let (words, floats) = generate::inputs(seed);
    let memory = Memory::new(1 << 20);
    let words: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let floats: Vec<u8> = floats.iter().flat_map(|f| f.to_le_bytes()).collect();
    let bytes = words.len() as u64;
    let mut addresses = [0; 3];
    for (slot, tag) in addresses.iter_mut().zip(["in", "fin", "out"]) {
        *slot = memory.allocate(bytes, tag).map_err(|e| e.to_string())?;
    }
    memory.write(addresses[0], &words).map_err(|e| e.to_string())?;
    memory.write(addresses[1], &floats).map_err(|e| e.to_string())?;
    let buffer = |address, access| Arg::Buffer { address, bytes, access };
    let [a, b, c] = addresses;
    let args = [buffer(a, Access::Read), buffer(b, Access::Read), buffer(c, Access::Write)];
    let options = LaunchOptions { checks, threads, ..LaunchOptions::default() };
    let range = NdRange::line(generate::GLOBAL as u64, generate::GROUP as u64);
    let outcome = program.launch(&memory, "k", &args, range, &options).map_err(|e| e.to_string())?;
    let mut out = vec![0; bytes as usize];
    memory.read(c, &mut out).map_err(|e| e.to_string())?;
    if let Some(finding) = outcome.findings.first() {
        return Err(format!("{finding}"));
    }
    Ok((out, outcome.findings.len()))
}

#[test]
fn results_depend_on_neither_threads_nor_checks() {
    let count = std::env::var("AETHERCL_GENERATED").ok().and_then(|v| v.parse().ok()).unwrap_or(60);
    let mut wrong = Vec::new();
    for seed in 0..count {
        let text = generate::kernel(seed);
        let program = Program::build(&Source { name: "k.cl", text: &text }, "", &Includes::none());
        let program = match program {
            Ok(program) => program,
            Err(e) => {
                wrong.push(format!("seed {seed}: {}", e.log));
                continue;
            }
        };
        let (one, four) = (run(&program, seed, Checks::NONE, 1), run(&program, seed, Checks::NONE, 4));
        let checked = run(&program, seed, Checks::ALL, 1);
        if one.is_err() || one != four || one != checked {
            let why = [one, four, checked].into_iter().find_map(Result::err);
            wrong.push(format!("seed {seed}: {}\n{text}", why.unwrap_or("results differ".into())));
        }
    }
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}
