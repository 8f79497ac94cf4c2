//! Random kernels whose result the language defines to the last bit. Two implementations must agree on it.
//!
//! Arithmetic that may overflow is unsigned, and divisors are positive. Floats are only added, subtracted, multiplied and
//! compared, with contraction off. Conversions saturate and take no NaN. Every variable is initialized. All items reach each barrier.
//! Each work-item writes the words of its row of `out`.

mod expression;

use std::fmt::Write;

/// Work-items of a launch.
pub const GLOBAL: usize = 64;
/// Work-items per group.
pub const GROUP: usize = 16;
/// Words that each work-item reads from each input, and writes.
pub const WORDS: usize = 16;

/// Pseudorandom numbers, the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 33) % n as u64) as usize
    }

    fn of<'t>(&mut self, list: &[&'t str]) -> &'t str {
        list[self.below(list.len())]
    }
}

/// Type of an expression.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Uint,
    Int,
    Ulong,
    Float,
    Uint4,
    Int4,
    Float4,
    Ushort2,
}

impl Kind {
    const ALL: [Kind; 8] = [
        Kind::Uint,
        Kind::Int,
        Kind::Ulong,
        Kind::Float,
        Kind::Uint4,
        Kind::Int4,
        Kind::Float4,
        Kind::Ushort2,
    ];

    fn name(self) -> &'static str {
        match self {
            Kind::Uint => "uint",
            Kind::Int => "int",
            Kind::Ulong => "ulong",
            Kind::Float => "float",
            Kind::Uint4 => "uint4",
            Kind::Int4 => "int4",
            Kind::Float4 => "float4",
            Kind::Ushort2 => "ushort2",
        }
    }

    /// Prefix of the variables of this type.
    fn letter(self) -> char {
        match self {
            Kind::Uint => 'u',
            Kind::Int => 'i',
            Kind::Ulong => 'l',
            Kind::Float => 'f',
            Kind::Uint4 => 'v',
            Kind::Int4 => 'w',
            Kind::Float4 => 'g',
            Kind::Ushort2 => 's',
        }
    }
}

/// Variables of each type.
const VARIABLES: usize = 3;

struct Writer {
    random: Random,
    text: String,
    indent: usize,
    loops: usize,
    /// True inside a loop that may be exited.
    in_loop: bool,
}

/// Returns the kernel of a seed: `k(in words, in floats, out words)`.
pub fn kernel(seed: u64) -> String {
    let random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut w = Writer { random, text: String::new(), indent: 1, loops: 0, in_loop: false };
    w.text.push_str("#pragma OPENCL FP_CONTRACT OFF\n");
    // The language does not define the result of a NaN's conversion.
    w.text.push_str("float number(float x) { return isnan(x) ? 0.0f : x; }\n");
    w.text.push_str("float4 number4(float4 x) { return select(x, (float4)(0.0f), isnan(x)); }\n");
    w.helper();
    w.text.push_str("kernel void k(global const uint *in, global const float *fin, global uint *out) {\n");
    let _ = writeln!(w.text, "  const uint id = get_global_id(0), lid = get_local_id(0);");
    let _ = writeln!(w.text, "  in += id * {WORDS};\n  fin += id * {WORDS};\n  out += id * {WORDS};");
    let _ = writeln!(w.text, "  local uint scratch[{GROUP}];\n  uint a[8];");
    w.line("for (uint n = 0; n < 8; n++) a[n] = in[n] ^ n;");
    w.declarations();
    let statements = 6 + w.random.below(10);
    for _ in 0..statements {
        w.statement(3);
        if w.random.below(5) == 0 {
            w.exchange();
        }
    }
    w.results();
    w.text.push_str("}\n");
    w.text
}

/// Returns the kernels of these seeds in one program, as `k_<seed>`. The compiler's cost per program occurs once.
#[allow(dead_code)] // a test that takes kernels one by one does not use it
pub fn program(seeds: std::ops::Range<u64>) -> String {
    let one = |seed| {
        let text = kernel(seed);
        let names = ["k", "helper", "number", "number4"];
        let define = names.map(|n| format!("#define {n} {n}_{seed}\n")).concat();
        define + &text + &names.map(|n| format!("#undef {n}\n")).concat()
    };
    seeds.map(one).collect()
}

/// Returns words for the first input and floats for the second, for the same seed.
pub fn inputs(seed: u64) -> (Vec<u32>, Vec<f32>) {
    let mut random = Random(seed.wrapping_mul(0xd134_2543_de82_ef95) | 1);
    let special = [0, 1, 2, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 31, 32];
    let word = |r: &mut Random| if r.below(4) == 0 { special[r.below(8)] } else { r.next() as u32 };
    let words = (0..GLOBAL * WORDS).map(|_| word(&mut random)).collect();
    let floats = (0..GLOBAL * WORDS).map(|_| (random.below(4001) as f32 - 2000.0) / 16.0).collect();
    (words, floats)
}

impl Writer {
    fn line(&mut self, text: &str) {
        let pad = "  ".repeat(self.indent);
        let _ = writeln!(self.text, "{pad}{text}");
    }

    /// Generates a function with loops and early returns.
    fn helper(&mut self) {
        let (a, b) = (1 + self.random.below(7), self.random.below(100));
        let _ = write!(
            self.text,
            "uint helper(uint x, uint y) {{\n  for (uint n = 0; n < (y & 7); n++) {{\n    if ((x & {a}) == 0) return x ^ {b};\n    \
             x = x * 3 + (y >> n);\n    if (x % {} == 1) continue;\n    y ^= x;\n  }}\n  return x - y;\n}}\n",
            a + 2
        );
    }

    fn declarations(&mut self) {
        for kind in Kind::ALL {
            for n in 0..VARIABLES {
                let at = self.random.below(12);
                let value = match kind {
                    Kind::Uint => format!("in[{at}]"),
                    Kind::Int => format!("(int)in[{at}]"),
                    Kind::Ulong => format!("(ulong)in[{at}] << 32 | in[{}]", at + 1),
                    Kind::Float => format!("fin[{at}]"),
                    Kind::Uint4 => format!("vload4(0, in + {at})"),
                    Kind::Int4 => format!("as_int4(vload4(0, in + {at}))"),
                    Kind::Float4 => format!("vload4(0, fin + {at})"),
                    Kind::Ushort2 => format!("as_ushort2(in[{at}])"),
                };
                self.line(&format!("{} {}{n} = {value};", kind.name(), kind.letter()));
            }
        }
    }

    fn variable(&mut self, kind: Kind) -> String {
        format!("{}{}", kind.letter(), self.random.below(VARIABLES))
    }

    fn statement(&mut self, depth: usize) {
        let choice = self.random.below(if depth == 0 { 6 } else { 12 });
        match choice {
            0..=3 => {
                let kind = Kind::ALL[self.random.below(Kind::ALL.len())];
                self.assignment(kind);
            }
            4 => {
                let (index, value) = (self.expression(Kind::Uint, 1), self.expression(Kind::Uint, 2));
                let op = self.random.of(&["=", "+=", "^=", "-="]);
                self.line(&format!("a[{index} & 7] {op} {value};"));
            }
            5 => {
                let (v, lane, value) = (
                    self.variable(Kind::Uint4),
                    self.random.of(&["x", "s1", "w"]),
                    self.expression(Kind::Uint, 2),
                );
                self.line(&format!("{v}.{lane} = {value};"));
            }
            6 | 7 => self.branch(depth),
            8 | 9 => self.counted_loop(depth),
            10 => self.switch(depth),
            _ => {
                let cond = self.condition();
                let v = self.variable(Kind::Uint);
                if self.in_loop {
                    let leave = self.random.of(&["break", "continue"]);
                    self.line(&format!("if ({cond}) {leave};"));
                } else {
                    self.line(&format!("if ({cond}) {v}++;"));
                }
            }
        }
    }

    fn assignment(&mut self, kind: Kind) {
        let (v, value) = (self.variable(kind), self.expression(kind, 3));
        let op = match kind {
            Kind::Uint | Kind::Ulong | Kind::Uint4 => self.random.of(&["=", "+=", "*=", "^=", "|="]),
            Kind::Float | Kind::Float4 => self.random.of(&["=", "+=", "-="]),
            _ => "=",
        };
        self.line(&format!("{v} {op} {value};"));
    }

    fn block(&mut self, depth: usize) {
        self.indent += 1;
        for _ in 0..1 + self.random.below(3) {
            self.statement(depth - 1);
        }
        self.indent -= 1;
    }

    fn branch(&mut self, depth: usize) {
        let cond = self.condition();
        self.line(&format!("if ({cond}) {{"));
        self.block(depth);
        if self.random.below(2) == 0 {
            self.line("} else {");
            self.block(depth);
        }
        self.line("}");
    }

    fn counted_loop(&mut self, depth: usize) {
        let n = self.loops;
        self.loops += 1;
        let most = self.expression(Kind::Uint, 1);
        let head = match self.random.below(3) {
            0 => format!("for (uint n{n} = 0; n{n} < ({most} & 7); n{n}++) {{"),
            1 => format!("for (int n{n} = 5; n{n} > 0; n{n} -= 2) {{"),
            _ => format!("for (uint n{n} = {most} & 3; n{n}-- > 0;) {{"),
        };
        self.line(&head);
        let before = std::mem::replace(&mut self.in_loop, true);
        self.block(depth);
        self.in_loop = before;
        self.line("}");
    }

    fn switch(&mut self, depth: usize) {
        let value = self.expression(Kind::Uint, 1);
        self.line(&format!("switch ({value} & 3) {{"));
        // `continue` in a switch belongs to the loop around it, and `break` to the switch. Both are useful only in a loop.
        for case in ["case 0:", "case 2: case 1:", "default:"] {
            self.line(case);
            self.block(depth);
            if self.random.below(3) > 0 {
                self.line("  break;");
            }
        }
        self.line("}");
    }

    /// Generates an exchange of words between the items of a group.
    fn exchange(&mut self) {
        let (value, v, by) =
            (self.expression(Kind::Uint, 2), self.variable(Kind::Uint), self.random.below(GROUP));
        self.line(&format!("scratch[lid] = {value};"));
        self.line("barrier(CLK_LOCAL_MEM_FENCE);");
        self.line(&format!("{v} ^= scratch[(lid + {by}) % {GROUP}];"));
        self.line("barrier(CLK_LOCAL_MEM_FENCE);");
    }

    /// Writes every variable into the item's row. All NaNs become one value, and the two zeros become one value.
    fn results(&mut self) {
        let float = |f: &str| format!("(isnan({f}) ? 0x7fc00000u : as_uint({f} + 0.0f))");
        for n in 0..VARIABLES {
            let word = format!(
                "u{n} ^ (uint)i{n} * 3 ^ (uint)l{n} ^ (uint)(l{n} >> 32) * 5 ^ as_uint(s{n}) ^ a[{n}]"
            );
            self.line(&format!("out[{n}] = {word};"));
            self.line(&format!("out[{}] = {};", 3 + n, float(&format!("f{n}"))));
            self.line(&format!("uint4 r{n} = v{n} ^ as_uint4(w{n}) * 7;"));
            self.line(&format!("out[{}] = r{n}.x ^ r{n}.y * 3 ^ r{n}.z * 5 ^ r{n}.w * 7;", 6 + n));
            self.line(&format!(
                "out[{}] = {} ^ {};",
                9 + n,
                float(&format!("g{n}.x")),
                float(&format!("g{n}.z"))
            ));
        }
        for n in 12..WORDS {
            self.line(&format!("out[{n}] = a[{}];", n - 8));
        }
    }
}
