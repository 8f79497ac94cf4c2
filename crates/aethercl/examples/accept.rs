//! Builds files: `accept LIST`, a line of which is a path, a tab, and build options. Prints `ok` or the first error for each, and `ok, but it
//! does not link` for a file that compiles but calls functions of other files: compilers that only check syntax accept such files.
//!
//! Compare the output with another compiler's to find files that only this front end rejects.
#![allow(clippy::print_stdout, reason = "a program")]

use aethercl::{Includes, Program, Source, Target, check_unit};

fn main() -> std::io::Result<()> {
    let list = std::env::args().nth(1).unwrap_or_default();
    for line in std::fs::read_to_string(list)?.lines() {
        let (path, options) = line.split_once('\t').unwrap_or((line, ""));
        let text = String::from_utf8_lossy(&std::fs::read(path)?).into_owned();
        let (source, includes) = (Source { name: path, text: &text }, Includes::from_disk());
        let answer = match Program::build(&source, options, &includes) {
            Ok(program) => {
                let failed = program.kernels().iter().find_map(|k| program.lower(&k.name).err());
                failed.map_or("ok".to_string(), |e| first(&e.to_string()))
            }
            Err(e) => match check_unit(&source, options, &includes, &Target::default()) {
                Ok(_) => format!("ok, but it does not link: {}", first(&e.log)),
                Err(e) => first(&e.log),
            },
        };
        println!("{path}\t{answer}");
    }
    Ok(())
}

/// The first line that says what is wrong.
fn first(log: &str) -> String {
    let error = log.lines().find(|l| l.contains("error:")).or_else(|| log.lines().next());
    error.unwrap_or("no reason").to_string()
}
