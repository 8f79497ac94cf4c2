//! No source makes the front end or the lowering panic or hang. The sources are the test cases, changed by bytes and by tokens.
//!
//! The short test runs a fixed list of changes. The long test runs new changes until its time is over:
//! `AETHERCL_FUZZ_SECONDS=3600 cargo test -p aethercl --test fuzz -- --ignored --nocapture`.
//! `AETHERCL_CORPUS` names a folder of further programs, and `AETHERCL_FUZZ_SEED` sets another seed.
//! `AETHERCL_FUZZ_KEEP` names a file that holds the source under test.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use aethercl::{Includes, Program, Source};

/// Time limit: a longer build counts as a hang. Ordinary sources take milliseconds, and the largest kernels take a second.
/// Busy machines have taken 21 seconds.
const LIMIT: Duration = Duration::from_secs(120);

/// Fragments of programs, valid and invalid.
const PIECES: [&str; 64] = [
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    ";",
    ",",
    ".",
    "->",
    "*",
    "&",
    "=",
    "==",
    "?",
    ":",
    "#",
    "##",
    "\n",
    "\\\n",
    "\"",
    "'",
    "/*",
    "*/",
    "//",
    "0x",
    "1e",
    "0",
    "-1",
    "4294967296",
    "1.0f",
    "'a'",
    "\"%d\"",
    "__global ",
    "__local ",
    "__constant ",
    "kernel ",
    "void ",
    "int ",
    "float4 ",
    "half ",
    "double ",
    "struct s ",
    "union ",
    "enum ",
    "typedef ",
    "static ",
    "const ",
    "sizeof ",
    "if ",
    "else ",
    "for ",
    "while ",
    "switch ",
    "case ",
    "return ",
    "#define F(x) x##x F(x)\n",
    "#if 1\n",
    "#endif\n",
    "#include \"a\"\n",
    "(float4)",
    "convert_int4_sat(",
    "vload4(",
    "__attribute__((aligned(",
];

/// Pseudorandom numbers, the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { (self.next() % n as u64) as usize }
    }
}

fn programs(folder: &Path, into: &mut Vec<String>) -> std::io::Result<()> {
    let mut paths: Vec<_> = std::fs::read_dir(folder)?.filter_map(|e| e.ok().map(|e| e.path())).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            programs(&path, into)?;
        } else if path.extension().is_some_and(|e| e == "cl") {
            into.push(String::from_utf8_lossy(&std::fs::read(&path)?).into_owned());
        }
    }
    Ok(())
}

fn corpus() -> std::io::Result<Vec<String>> {
    let mut texts = Vec::new();
    programs(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels"), &mut texts)?;
    if let Ok(folder) = std::env::var("AETHERCL_CORPUS") {
        programs(Path::new(&folder), &mut texts)?;
    }
    Ok(texts)
}

/// Returns a range of a few bytes of a source.
fn range(random: &mut Random, len: usize, most: usize) -> std::ops::Range<usize> {
    let from = random.below(len + 1);
    from..(from + random.below(most)).min(len)
}

/// Makes one change by bytes.
fn change_bytes(random: &mut Random, text: &mut Vec<u8>) {
    let at = random.below(text.len() + 1);
    match random.below(5) {
        0 if at < text.len() => text[at] = random.next() as u8,
        1 if at < text.len() => text[at] ^= 1 << random.below(8),
        2 => text.insert(at, random.next() as u8),
        3 => _ = text.drain(range(random, text.len(), 16)),
        _ => {
            let copy = text[range(random, text.len(), 64)].to_vec();
            text.splice(at..at, copy);
        }
    }
}

/// Splits a source into words, numbers and single other characters.
fn words(text: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let (token, tail) = rest.split_at(if word == 0 { first.len_utf8() } else { word });
        out.push(token);
        rest = tail;
    }
    out
}

/// Makes one change by tokens, some from another program.
fn change_words<'t>(random: &mut Random, list: &mut Vec<&'t str>, other: &[&'t str]) {
    let at = random.below(list.len() + 1);
    match random.below(6) {
        0 if at < list.len() => list[at] = PIECES[random.below(PIECES.len())],
        1 => list.insert(at, PIECES[random.below(PIECES.len())]),
        2 => _ = list.drain(range(random, list.len(), 8)),
        3 => {
            let copy = list[range(random, list.len(), 32)].to_vec();
            list.splice(at..at, copy);
        }
        4 => {
            let copy = other[range(random, other.len(), 32)].to_vec();
            list.splice(at..at, copy);
        }
        _ => {
            let (a, b) = (random.below(list.len()), random.below(list.len()));
            if a < list.len() && b < list.len() {
                list.swap(a, b);
            }
        }
    }
}

fn mutate(random: &mut Random, texts: &[String]) -> String {
    let (text, other) = (&texts[random.below(texts.len())], &texts[random.below(texts.len())]);
    let changes = 1 + random.below(8);
    if random.below(3) == 0 {
        let mut bytes = text.clone().into_bytes();
        (0..changes).for_each(|_| change_bytes(random, &mut bytes));
        return String::from_utf8_lossy(&bytes).into_owned();
    }
    let (mut list, other) = (words(text), words(other));
    (0..changes).for_each(|_| change_words(random, &mut list, &other));
    list.concat()
}

/// Builds a source and lowers its kernels. Success and an error are both accepted.
fn check(text: &str, what: &str) {
    let start = Instant::now();
    let result = Program::build(&Source { name: "fuzz.cl", text }, "", &Includes::none());
    let failed = result.as_ref().is_err_and(|e| e.log.contains("the compiler failed"));
    assert!(!failed, "{what} makes the front end panic:\n{text}");
    if let Ok(program) = result {
        for kernel in program.kernels() {
            let lowered = catch_unwind(AssertUnwindSafe(|| program.lower(&kernel.name).is_ok()));
            assert!(lowered.is_ok(), "{what} makes the lowering of {} panic:\n{text}", kernel.name);
        }
    }
    assert!(start.elapsed() < LIMIT, "{what} takes {:?}:\n{text}", start.elapsed());
}

#[test]
fn changed_programs_get_an_answer() {
    let texts = corpus().expect("the test programs");
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for i in 0..1500 {
        check(&mutate(&mut random, &texts), &format!("change {i}"));
    }
}

#[test]
#[ignore = "runs for AETHERCL_FUZZ_SECONDS"]
fn changed_programs_for_a_long_time() {
    let variable = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let limit = Duration::from_secs(variable("AETHERCL_FUZZ_SECONDS").unwrap_or(60));
    let seed = variable("AETHERCL_FUZZ_SEED").unwrap_or(1);
    let texts = corpus().expect("the test programs");
    let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1);
    // A stack overflow ends the process: this file then holds the source that caused it.
    let keep = std::env::var_os("AETHERCL_FUZZ_KEEP");
    let (start, mut count) = (Instant::now(), 0u64);
    while start.elapsed() < limit {
        let text = mutate(&mut random, &texts);
        if let Some(path) = &keep {
            std::fs::write(path, &text).expect("the file for the text");
        }
        check(&text, &format!("change {count} of seed {seed}"));
        count += 1;
    }
    println!("{count} texts in {:?}, seed {seed}", start.elapsed());
}

/// Returns `o[0] = ` and the inner expression, with `n` copies of the others around it.
fn deep(open: &str, inner: &str, close: &str, n: usize) -> String {
    format!("kernel void k(global int *o) {{ o[0] = {}{inner}{}; }}", open.repeat(n), close.repeat(n))
}

/// Nesting far beyond the limits.
fn nested_programs() -> Vec<String> {
    vec![
        deep("(", "1", ")", 100_000),
        deep("-", "1", "", 100_000),
        deep("o[", "0", "]", 50_000),
        deep("(int)", "1", "", 50_000),
        deep("1+", "1", "", 100_000),
        deep("sizeof(int[", "1", "])", 20_000),
        deep("(int4)(", "1", ").x", 20_000),
        deep("min(", "1", ",1)", 20_000),
        deep("o?1:", "1", "", 20_000),
        deep("o=", "o", "", 20_000),
        deep("({", "1;", "})", 50_000),
        deep("({ L: if (o[0]) goto L; ", "1;", "})", 20_000),
        format!(
            "kernel void k(global int *o) {{ goto L; {} L: ; {} }}",
            "{".repeat(50_000),
            "}".repeat(50_000)
        ),
        format!("kernel void k(global int *o) {{ {} }}", "{".repeat(100_000)),
        format!("kernel void k(global int *o) {{ {} ; }}", "if (1) ".repeat(100_000)),
        format!("kernel void k(global int *o) {{ {} ; }}", "if (1) ; else ".repeat(100_000)),
        format!(
            "kernel void k(global int *o) {{ int a[1] = {}0{}; }}",
            "{".repeat(50_000),
            "}".repeat(50_000)
        ),
        format!("kernel void k(global int {}o) {{ }}", "*".repeat(100_000)),
        format!("kernel void k(global int {}o{}) {{ }}", "(".repeat(50_000), ")".repeat(50_000)),
        format!("int x{};", "[2]".repeat(50_000)),
        format!("{}int x;", "struct {".repeat(50_000)),
        // Words that only start like `__attribute__`.
        "kernel void k(global int *o) { __attributm__; __attributes((a)) ; }".to_string(),
    ]
}

/// Nesting at the limits: these sources build and are lowered.
fn deepest_programs() -> Vec<String> {
    vec![
        deep("(", "o[0]", ")", 180),
        deep("o[0]+", "1", "", 380),
        deep("~", "o[0]", "", 380),
        deep("o[", "0", "]", 120),
        deep("min(", "o[0]", ",1)", 120),
        deep("o[0]?1:", "1", "", 120),
        deep("o[0]=", "o[1]", "", 180),
        deep("(o[0]&&", "o[1]", ")", 120),
        deep("({ int t = o[1]; t + ", "o[0];", "})", 70),
        deep("({ L: if (o[1] > 3) goto L; ", "o[0];", "})", 60),
        format!(
            "kernel void k(global int *o) {{ if (o[0]) goto L; {} L: o[1]++; {} }}",
            "while (o[2]) { ".repeat(60),
            "}".repeat(60)
        ),
        format!("kernel void k(global int *o) {{ {} o[1]++; }}", "if (o[0]) ".repeat(180)),
        format!("kernel void k(global int *o) {{ {} o[1]++; {} }}", "for (;;) { ".repeat(90), "}".repeat(90)),
    ]
}

/// Chains and expansions far beyond the limits.
fn long_programs() -> Vec<String> {
    let bomb: String = (0..40).map(|i| format!("#define M{} M{i} M{i}\n", i + 1)).collect();
    let chain: String = (0..20000).map(|i| format!("typedef T{i} *T{};\n", i + 1)).collect();
    let arrays: String = (0..2000).map(|i| format!("typedef A{i} A{}[2];\n", i + 1)).collect();
    let nested: String =
        (0..2000).map(|i| format!("struct S{} {{ struct S{i} a; int b; }};\n", i + 1)).collect();
    let calls: String = (0..5000).map(|i| format!("int f{}(int x) {{ return f{i}(x); }}\n", i + 1)).collect();
    let switch: String = (0..20000).map(|i| format!("case {i}: ")).collect();
    vec![
        format!("#define M0 x\n{bomb}M40"),
        "#define F(x) x x\n".to_string() + &"F(".repeat(5000) + "1" + &")".repeat(5000),
        format!("#if {}1{}\n#endif", "(".repeat(100_000), ")".repeat(100_000)),
        format!("#if {}1\n#endif", "!".repeat(100_000)),
        format!("#if {}1\n#endif", "1?1:".repeat(100_000)),
        format!("#if {}1\n#endif", "1+".repeat(100_000)),
        "#include \"fuzz.cl\"\n".repeat(1000),
        format!("typedef int T0;\n{chain}kernel void k(global T19999 *o) {{}}"),
        format!("typedef int A0;\n{arrays}"),
        format!(
            "struct S0 {{ int a; }};\n{nested}kernel void k(global struct S2000 *o) {{ struct S2000 x = {{1}}; }}"
        ),
        format!("int f0(int x) {{ return x; }}\n{calls}kernel void k(global int *o) {{ o[0] = f5000(1); }}"),
        format!("kernel void k(global int *o) {{ switch (o[0]) {{ {switch}; }} }}"),
        "constant char big[1000000000000] = {1};".to_string(),
        "constant int big[] = {[100000000] = 1};".to_string(),
        "enum { A = 0x7fffffffffffffff, B };".to_string(),
        "kernel void k(global int *o) { o[0] = 1 << 99; o[1] = (-2147483647 - 1) / -1; o[2] = 5 % 0; }"
            .to_string(),
    ]
}

#[test]
fn extreme_programs_get_an_answer() {
    let programs = nested_programs().into_iter().chain(deepest_programs()).chain(long_programs());
    for (i, text) in programs.enumerate() {
        check(&text, &format!("extreme program {i}"));
    }
}
