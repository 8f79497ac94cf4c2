//! Oclgrind's kernel cases (github.com/jrprice/Oclgrind, `tests/kernels`), read from the folder `DIR`:
//! `AETHERCL_OCLGRIND=DIR cargo test -p aethercl --test oclgrind -- --nocapture` prints the number that agree and the differences.
//!
//! A case agrees when the buffers it dumps match its reference exactly. The checks must also report every kind of error
//! that the reference names, and no other kind (a misaligned access counts as an invalid one).

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test")]

use aethercl::{
    Access, Arg, ArgKind, Checks, FindingKind, Includes, LaunchOptions, Memory, NdRange, Program, Source,
};
use std::collections::BTreeSet;
use std::path::Path;

/// An argument of a `.sim` file: `<size=16 int range=0:1:3 dump>` and values.
#[derive(Default)]
struct SimArg {
    size: usize,
    ty: Option<String>,
    fill: Option<String>,
    range: Option<(f64, f64)>,
    dump: bool,
    hex: bool,
    noinit: bool,
    null: bool,
    read_only: bool,
    values: Vec<String>,
}

fn parse_args(text: &str) -> Vec<SimArg> {
    let mut args = Vec::new();
    for part in text.split('<').skip(1) {
        let (head, values) = part.split_once('>').unwrap_or((part, ""));
        let mut arg =
            SimArg { values: values.split_whitespace().map(String::from).collect(), ..SimArg::default() };
        for word in head.split_whitespace() {
            match word.split_once('=').unwrap_or((word, "")) {
                ("size", n) => arg.size = n.parse().unwrap(),
                ("fill", v) => arg.fill = Some(v.to_string()),
                ("range", v) => {
                    let n: Vec<f64> = v.split(':').map(|n| n.parse().unwrap()).collect();
                    arg.range = Some((n[0], n[1]));
                }
                ("dump", _) => arg.dump = true,
                ("hex", _) => arg.hex = true,
                ("noinit", _) => arg.noinit = true,
                ("null", _) => arg.null = true,
                ("ro", _) => arg.read_only = true,
                ("wo", _) => {}
                (ty, _) => arg.ty = Some(ty.to_string()),
            }
        }
        args.push(arg);
    }
    args
}

/// Returns the element type of values and dumps: the named type, or the parameter's type.
fn element(arg: &SimArg, declared: &str) -> String {
    if let Some(ty) = &arg.ty {
        return ty.clone();
    }
    let known = ["uchar", "char", "ushort", "short", "uint", "int", "ulong", "long", "float", "double"];
    let word = |k: &&&str| {
        declared.split(|c: char| !c.is_alphanumeric()).any(|w| w.trim_end_matches(char::is_numeric) == **k)
    };
    known.iter().find(word).map_or("uchar", |k| k).to_string()
}

fn size_of(ty: &str) -> usize {
    match ty {
        "char" | "uchar" => 1,
        "short" | "ushort" => 2,
        "int" | "uint" | "float" => 4,
        _ => 8,
    }
}

fn bytes_of(ty: &str, text: &str, hex: bool) -> Vec<u8> {
    let integer = || {
        let digits = text.trim_start_matches("0x");
        if hex { i128::from_str_radix(digits, 16).unwrap() } else { text.parse::<f64>().unwrap() as i128 }
    };
    match ty {
        "float" => text.parse::<f32>().unwrap().to_le_bytes().to_vec(),
        "double" => text.parse::<f64>().unwrap().to_le_bytes().to_vec(),
        _ => integer().to_le_bytes()[..size_of(ty)].to_vec(),
    }
}

fn number(ty: &str, bytes: &[u8]) -> f64 {
    let mut raw = [0u8; 16];
    raw[..bytes.len()].copy_from_slice(bytes);
    let wide = i128::from_le_bytes(raw);
    let shift = 128 - 8 * bytes.len();
    match ty {
        "float" => f64::from(f32::from_bits(wide as u32)),
        "double" => f64::from_bits(wide as u64),
        _ if ty.starts_with('u') => wide as f64,
        _ => ((wide << shift) >> shift) as f64,
    }
}

fn content(arg: &SimArg, ty: &str) -> Vec<u8> {
    let mut data = Vec::new();
    while data.len() < arg.size {
        let i = data.len() / size_of(ty);
        let text = match (&arg.fill, arg.range) {
            (Some(v), _) => v.clone(),
            (_, Some((first, step))) => (first + step * i as f64).to_string(),
            _ => arg.values.get(i).cloned().unwrap_or("0".to_string()),
        };
        data.extend(bytes_of(ty, &text, arg.hex && arg.range.is_none()));
    }
    data.truncate(arg.size);
    data
}

/// Returns the kind of error that a line of a reference represents.
fn expected_kind(line: &str) -> &'static str {
    match line {
        l if l.contains("race") => "race",
        l if l.contains("divergence") => "divergence",
        l if l.contains("Uninitialized") => "uninitialized",
        l if l.contains("read-only") => "contract",
        l if l.contains("Invalid") || l.contains("exceeds") => "outside",
        _ => "other",
    }
}

fn found_kind(kind: FindingKind) -> &'static str {
    match kind {
        FindingKind::RaceInGroup | FindingKind::RaceBetweenGroups => "race",
        FindingKind::DivergentBarrier => "divergence",
        FindingKind::Uninitialized => "uninitialized",
        FindingKind::WriteToRead => "contract",
        FindingKind::Misaligned
        | FindingKind::IndexOutside
        | FindingKind::ReadOutside
        | FindingKind::WriteOutside
        | FindingKind::UseAfterFree => "outside",
        _ => "other",
    }
}

fn run(sim: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(sim).map_err(|e| e.to_string())?;
    let mut lines = text.lines().map(|l| l.split('#').next().unwrap_or("").trim()).filter(|l| !l.is_empty());
    let mut next = || lines.next().unwrap_or("").to_string();
    let (file, kernel, global, local) = (next(), next(), next(), next());
    let rest: Vec<&str> = lines.collect();
    let sizes = |t: &str| {
        let mut out = [1u64; 3];
        t.split_whitespace().zip(&mut out).for_each(|(w, o)| *o = w.parse().unwrap());
        out
    };
    let source = std::fs::read_to_string(sim.with_file_name(&file)).map_err(|e| e.to_string())?;
    let options =
        source.lines().next().and_then(|l| l.split_once("build-options:")).map_or("", |(_, o)| o.trim());
    let program = Program::build(&Source { name: &file, text: &source }, options, &Includes::none());
    let program = program.map_err(|e| format!("does not build: {}", e.log))?;
    let info = program.kernel(&kernel).ok_or("no such kernel")?.clone();
    let args = parse_args(&rest.join("\n"));
    let memory = Memory::new(1 << 24);
    let mut buffers = Vec::new();
    for (arg, declared) in args.iter().zip(&info.args) {
        let ty = element(arg, &declared.ty);
        let data = content(arg, &ty);
        let mut address = 0;
        if matches!(declared.kind, ArgKind::Buffer { .. }) && !arg.null {
            address = memory.allocate(arg.size as u64, &declared.name).map_err(|e| e.to_string())?;
            let given = arg.fill.is_some() || arg.range.is_some() || !arg.values.is_empty();
            if given && !arg.noinit {
                memory.write(address, &data).map_err(|e| e.to_string())?;
            }
        }
        buffers.push((address, data, ty));
    }
    let given: Vec<Arg<'_>> = args
        .iter()
        .zip(&info.args)
        .zip(&buffers)
        .map(|((arg, declared), (address, data, _))| match declared.kind {
            ArgKind::Buffer { .. } if arg.null => Arg::Buffer { address: 0, bytes: 0, access: Access::Read },
            ArgKind::Buffer { .. } => {
                let access = if arg.read_only { Access::Read } else { Access::Write };
                Arg::Buffer { address: *address, bytes: arg.size as u64, access }
            }
            ArgKind::Local => Arg::Local(arg.size),
            // Oclgrind's cases do not have images or samplers. A launch with bytes instead of one is refused.
            ArgKind::Value(_) | ArgKind::Image(..) | ArgKind::Sampler => Arg::Scalar(data),
        })
        .collect();
    let range = NdRange { global: sizes(&global), local: sizes(&local), offset: [0; 3], dimensions: 3 };
    let options = LaunchOptions { checks: Checks::ALL, max_steps: 1_000_000_000, ..LaunchOptions::default() };
    let outcome = program.launch(&memory, &kernel, &given, range, &options).map_err(|e| e.to_string())?;
    let reference = std::fs::read_to_string(sim.with_extension("ref")).map_err(|e| e.to_string())?;
    compare_buffers(&reference, &memory, &args, &info.args, &buffers)?;
    compare_findings(&reference, &outcome.findings)
}

fn compare_findings(reference: &str, findings: &[aethercl::Finding]) -> Result<(), String> {
    let mut wanted: BTreeSet<&str> =
        reference.lines().filter_map(|l| l.strip_prefix("ERROR ")).map(expected_kind).collect();
    let found: BTreeSet<&str> = findings.iter().map(|f| found_kind(f.kind)).collect();
    // Oclgrind also reports the result of an invalid read as uninitialized. Here the read itself is the finding.
    if found.contains("outside") && !found.contains("uninitialized") {
        wanted.remove("uninitialized");
    }
    if wanted == found {
        return Ok(());
    }
    let texts: String = findings.iter().map(|f| format!("\n    {}", f.message)).collect();
    Err(format!("expected {wanted:?}, found {found:?}{texts}"))
}

type Placed = (u64, Vec<u8>, String);

fn compare_buffers(
    reference: &str,
    memory: &Memory,
    args: &[SimArg],
    infos: &[aethercl::ArgInfo],
    buffers: &[Placed],
) -> Result<(), String> {
    for ((arg, info), (address, _, ty)) in args.iter().zip(infos).zip(buffers) {
        if !arg.dump {
            continue;
        }
        let mut bytes = vec![0; arg.size];
        memory.read(*address, &mut bytes).map_err(|e| e.to_string())?;
        for (i, chunk) in bytes.chunks(size_of(ty)).enumerate() {
            let key = format!("EXACT   {}[{i}] = ", info.name);
            let Some(wanted) = reference.lines().find_map(|l| l.strip_prefix(&key)) else { continue };
            let value = match wanted.strip_prefix("0x") {
                Some(hex) => i128::from_str_radix(hex, 16).unwrap() as f64,
                None => wanted.trim().trim_matches('\'').parse().unwrap_or(f64::NAN),
            };
            let unsigned = if wanted.starts_with("0x") {
                format!("u{}", ty.trim_start_matches('u'))
            } else {
                ty.clone()
            };
            let got = number(&unsigned, chunk);
            if (got - value).abs() > 1e-5 * value.abs() {
                return Err(format!("{}[{i}] is {got}, expected {value}", info.name));
            }
        }
    }
    Ok(())
}

#[test]
fn oclgrinds_cases_agree() {
    let Ok(root) = std::env::var("AETHERCL_OCLGRIND") else { return };
    let mut sims = Vec::new();
    for folder in std::fs::read_dir(root).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()) {
        let files = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path());
        sims.extend(files.filter(|p| p.extension().is_some_and(|e| e == "sim")));
    }
    sims.sort();
    // Aethercl does not implement the command language of Oclgrind's debugger.
    sims.retain(|p| !p.to_string_lossy().contains("/interactive/"));
    let mut agree = 0;
    for sim in &sims {
        match std::panic::catch_unwind(|| run(sim)) {
            Ok(Ok(())) => agree += 1,
            Ok(Err(why)) => println!("{}: {why}", sim.display()),
            Err(_) => println!("{}: cannot read this case", sim.display()),
        }
    }
    println!("{agree} of {} cases agree", sims.len());
    assert!(agree * 10 >= sims.len() * 7, "{agree} of {}", sims.len());
}
