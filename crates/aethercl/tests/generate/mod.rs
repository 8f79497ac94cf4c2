//! Random kernels whose result the language fixes to the last bit: what two implementations must agree on.
//!
//! Arithmetic that may overflow is unsigned, divisors are positive, floats are only added, subtracted, multiplied and
//! compared with contraction off, conversions saturate and take no NaN, every variable is initialised, barriers stand where all items
//! pass. Each work-item writes the words of its own row of `out`.

use std::fmt::Write;

/// Work-items of a launch and of a group.
pub const GLOBAL: usize = 64;
/// Work-items of a group.
pub const GROUP: usize = 16;
/// Words that each work-item reads from each input, and writes.
pub const WORDS: usize = 16;

/// Numbers that look random and are the same every time.
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

/// A type that expressions are made of.
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
    /// Inside a loop that may be left.
    in_loop: bool,
}

/// The kernel of a seed: `k(in words, in floats, out words)`.
pub fn kernel(seed: u64) -> String {
    let random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut w = Writer { random, text: String::new(), indent: 1, loops: 0, in_loop: false };
    w.text.push_str("#pragma OPENCL FP_CONTRACT OFF\n");
    // What a NaN is converted to is not fixed.
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

/// The kernels of these seeds in one program, as `k_<seed>`: what a compiler needs for a program is paid once.
pub fn program(seeds: std::ops::Range<u64>) -> String {
    let one = |seed| {
        let text = kernel(seed);
        let names = ["k", "helper", "number", "number4"];
        let define = names.map(|n| format!("#define {n} {n}_{seed}\n")).concat();
        define + &text + &names.map(|n| format!("#undef {n}\n")).concat()
    };
    seeds.map(one).collect()
}

/// Words for the first input, then floats for the second, of the same seed.
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

    /// A function with loops and returns in the middle.
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
        // `continue` in a switch belongs to the loop around it, `break` to the switch: both are of use in a loop only.
        for case in ["case 0:", "case 2: case 1:", "default:"] {
            self.line(case);
            self.block(depth);
            if self.random.below(3) > 0 {
                self.line("  break;");
            }
        }
        self.line("}");
    }

    /// Words pass between the items of a group.
    fn exchange(&mut self) {
        let (value, v, by) =
            (self.expression(Kind::Uint, 2), self.variable(Kind::Uint), self.random.below(GROUP));
        self.line(&format!("scratch[lid] = {value};"));
        self.line("barrier(CLK_LOCAL_MEM_FENCE);");
        self.line(&format!("{v} ^= scratch[(lid + {by}) % {GROUP}];"));
        self.line("barrier(CLK_LOCAL_MEM_FENCE);");
    }

    fn condition(&mut self) -> String {
        let op = self.random.of(&["<", ">", "==", "!=", "<=", ">="]);
        match self.random.below(6) {
            0 => format!("{} {op} {}", self.expression(Kind::Int, 1), self.expression(Kind::Int, 1)),
            1 => format!("{} {op} {}", self.expression(Kind::Float, 1), self.expression(Kind::Float, 1)),
            2 => format!("any({} {op} {})", self.expression(Kind::Uint4, 1), self.expression(Kind::Uint4, 1)),
            3 => format!("{} & {}", self.expression(Kind::Uint, 1), 1 + self.random.below(15)),
            4 => format!(
                "{} {op} {} && {} {op} {}",
                self.expression(Kind::Uint, 1),
                self.expression(Kind::Uint, 1),
                self.expression(Kind::Ulong, 1),
                self.expression(Kind::Ulong, 1)
            ),
            _ => format!(
                "!({} {op} {}) || (id & 1)",
                self.expression(Kind::Uint, 1),
                self.expression(Kind::Uint, 1)
            ),
        }
    }

    fn expression(&mut self, kind: Kind, depth: usize) -> String {
        if depth == 0 {
            return self.leaf(kind);
        }
        let d = depth - 1;
        match kind {
            Kind::Uint => self.uint(d),
            Kind::Int => self.int(d),
            Kind::Ulong => self.ulong(d),
            Kind::Float => self.float(d),
            Kind::Uint4 => self.uint4(d),
            Kind::Int4 => self.int4(d),
            Kind::Float4 => self.float4(d),
            Kind::Ushort2 => self.ushort2(d),
        }
    }

    fn leaf(&mut self, kind: Kind) -> String {
        if self.random.below(4) > 0 {
            return self.variable(kind);
        }
        let n = self.random.below(1000);
        match kind {
            Kind::Uint => self.random.of(&["id", "lid", "7u", "0xffffffffu", "a[3]", "1000003u"]).to_string(),
            Kind::Int => format!("{}", n as i64 - 500),
            Kind::Ulong => format!("{n}ul"),
            Kind::Float => format!("{}.{}f", n / 10, n % 2 * 5),
            Kind::Uint4 => format!("(uint4)({n}, id, 3, lid)"),
            Kind::Int4 => format!("(int4)(-{n})"),
            Kind::Float4 => format!("(float4)({n}.0f, 0.5f, -2.0f, 1.0f)"),
            Kind::Ushort2 => format!("(ushort2)({n}, 65535)"),
        }
    }

    fn pair(&mut self, kind: Kind, d: usize, op: &str) -> String {
        format!("({} {op} {})", self.expression(kind, d), self.expression(kind, d))
    }

    fn call(&mut self, name: &str, kinds: &[Kind], d: usize) -> String {
        let args: Vec<String> = kinds.iter().map(|k| self.expression(*k, d)).collect();
        format!("{name}({})", args.join(", "))
    }

    fn uint(&mut self, d: usize) -> String {
        use Kind::{Float, Int, Int4, Uint, Uint4, Ulong, Ushort2};
        match self.random.below(16) {
            0..=2 => {
                let op = self.random.of(&["+", "-", "*", "&", "|", "^"]);
                self.pair(Uint, d, op)
            }
            3 => format!(
                "({} {} {})",
                self.expression(Uint, d),
                self.random.of(&["<<", ">>"]),
                self.expression(Uint, d)
            ),
            4 => format!(
                "({} {} (({} & 15) + 1))",
                self.expression(Uint, d),
                self.random.of(&["/", "%"]),
                self.expression(Uint, d)
            ),
            5 => {
                let name = self.random.of(&[
                    "min", "max", "mul_hi", "rotate", "add_sat", "sub_sat", "hadd", "rhadd", "abs_diff",
                ]);
                self.call(name, &[Uint, Uint], d)
            }
            6 => {
                let name = self.random.of(&["clz", "popcount"]);
                self.call(name, &[Uint], d)
            }
            7 => self.call("mad24", &[Uint, Uint, Uint], d).replace("mad24(", "mad_sat("),
            8 => self.call("helper", &[Uint, Uint], d.min(1)),
            9 => format!(
                "({} ? {} : {})",
                self.condition_of(d),
                self.expression(Uint, d),
                self.expression(Uint, d)
            ),
            10 => format!("{}.{}", self.variable(Uint4), self.random.of(&["x", "y", "z", "w", "s2"])),
            11 => format!("a[{} & 7]", self.expression(Uint, d)),
            12 => {
                let from = if self.random.below(2) == 0 { Ulong } else { Int };
                format!("(uint){}", self.leaf(from))
            }
            13 => format!("convert_uint_sat(number({}))", self.expression(Float, d)),
            14 => format!("as_uint({})", self.expression(Ushort2, d)),
            _ => format!("(uint)all({} > {})", self.expression(Int4, d), self.expression(Int4, d)),
        }
    }

    /// A condition of little depth.
    fn condition_of(&mut self, d: usize) -> String {
        if d == 0 {
            "(id & 2)".into()
        } else {
            format!("({} > {})", self.variable(Kind::Int), self.leaf(Kind::Int))
        }
    }

    fn int(&mut self, d: usize) -> String {
        use Kind::{Float, Int, Int4, Uint};
        match self.random.below(8) {
            0 => format!("(int){}", self.expression(Uint, d)),
            1 => format!("({} >> ({} & 31))", self.expression(Int, d), self.expression(Uint, d)),
            2 => format!(
                "({} {} (int)(({} & 63) + 1))",
                self.expression(Int, d),
                self.random.of(&["/", "%"]),
                self.expression(Uint, d)
            ),
            3 => {
                let name = self.random.of(&["min", "max", "add_sat", "sub_sat", "mul_hi", "hadd"]);
                self.call(name, &[Int, Int], d)
            }
            4 => format!("convert_int_sat(number({}))", self.expression(Float, d)),
            5 => format!("(int)convert_char_sat({})", self.expression(Int, d)),
            6 => format!("{}.{}", self.variable(Int4), self.random.of(&["x", "s3"])),
            _ => format!("(~{} & {})", self.expression(Int, d), self.expression(Int, d)),
        }
    }

    fn ulong(&mut self, d: usize) -> String {
        use Kind::{Uint, Ulong};
        match self.random.below(6) {
            0 | 1 => {
                let op = self.random.of(&["+", "-", "*", "^", "&"]);
                self.pair(Ulong, d, op)
            }
            2 => format!(
                "({} {} ({} & 63))",
                self.expression(Ulong, d),
                self.random.of(&["<<", ">>"]),
                self.expression(Uint, d)
            ),
            3 => format!("({} % ({} | 1ul))", self.expression(Ulong, d), self.expression(Ulong, d)),
            4 => format!("(ulong){}", self.expression(Uint, d)),
            _ => self.call("mul_hi", &[Ulong, Ulong], d),
        }
    }

    fn float(&mut self, d: usize) -> String {
        use Kind::{Float, Float4, Int, Uint};
        match self.random.below(9) {
            0..=2 => {
                let op = self.random.of(&["+", "-", "*"]);
                self.pair(Float, d, op)
            }
            3 => {
                let name = self.random.of(&["floor", "ceil", "trunc", "fabs", "rint"]);
                self.call(name, &[Float], d)
            }
            4 => self.call("fma", &[Float, Float, Float], d),
            5 => {
                let from = if self.random.below(2) == 0 { Int } else { Uint };
                format!("(float){}", self.expression(from, d))
            }
            6 => format!("{}.{}", self.variable(Float4), self.random.of(&["x", "w"])),
            7 => format!(
                "({} < {} ? {} : {})",
                self.leaf(Float),
                self.leaf(Float),
                self.leaf(Float),
                self.leaf(Float)
            ),
            _ => format!("-{}", self.leaf(Float)).replace("--", "-"),
        }
    }

    fn uint4(&mut self, d: usize) -> String {
        use Kind::{Float4, Int4, Uint, Uint4};
        match self.random.below(9) {
            0..=2 => {
                let op = self.random.of(&["+", "-", "*", "^", "&", "|"]);
                self.pair(Uint4, d, op)
            }
            3 => format!("({} >> {})", self.expression(Uint4, d), self.expression(Uint4, d)),
            4 => format!("{}.{}", self.variable(Uint4), self.random.of(&["wzyx", "xxyy", "s3120", "yxwz"])),
            5 => format!(
                "(uint4)({}, {}.hi, {})",
                self.expression(Uint, d),
                self.variable(Uint4),
                self.expression(Uint, d)
            ),
            6 => format!(
                "({} < {} ? {} : {})",
                self.expression(Int4, d),
                self.leaf(Int4),
                self.leaf(Uint4),
                self.leaf(Uint4)
            ),
            7 => format!("convert_uint4_sat(number4({}))", self.expression(Float4, d)),
            _ => format!("({} * {})", self.expression(Uint4, d), self.expression(Uint, d)),
        }
    }

    fn int4(&mut self, d: usize) -> String {
        use Kind::{Float4, Int4, Uint4};
        match self.random.below(6) {
            0 => format!("as_int4({})", self.expression(Uint4, d)),
            1 => format!(
                "({} {} {})",
                self.expression(Float4, d),
                self.random.of(&["<", ">=", "=="]),
                self.expression(Float4, d)
            ),
            2 => self.call(self.name_of_pair(), &[Int4, Int4], d),
            3 => format!("({} >> 3)", self.expression(Int4, d)),
            4 => format!("convert_int4_sat(number4({}))", self.expression(Float4, d)),
            _ => format!(
                "select({}, {}, {} > {})",
                self.leaf(Int4),
                self.leaf(Int4),
                self.leaf(Int4),
                self.leaf(Int4)
            ),
        }
    }

    fn name_of_pair(&self) -> &'static str {
        if self.loops.is_multiple_of(2) { "max" } else { "sub_sat" }
    }

    fn float4(&mut self, d: usize) -> String {
        use Kind::{Float, Float4, Int4};
        match self.random.below(6) {
            0 | 1 => {
                let op = self.random.of(&["+", "-", "*"]);
                self.pair(Float4, d, op)
            }
            2 => self.call("convert_float4", &[Int4], d),
            3 => format!("({} * {})", self.expression(Float4, d), self.leaf(Float)),
            4 => format!("{}.{}", self.variable(Float4), self.random.of(&["yzwx", "xxww", "odd.xyxy"])),
            _ => format!("({} ? {} : {})", self.leaf(Int4), self.leaf(Float4), self.leaf(Float4)),
        }
    }

    fn ushort2(&mut self, d: usize) -> String {
        use Kind::{Uint, Ushort2};
        match self.random.below(5) {
            0 => format!("as_ushort2({})", self.expression(Uint, d)),
            1 => {
                let op = self.random.of(&["+", "-", "^"]);
                self.pair(Ushort2, d, op)
            }
            2 => self.call("add_sat", &[Ushort2, Ushort2], d),
            3 => format!("({} >> (ushort2)(3, 11))", self.expression(Ushort2, d)),
            _ => format!("{}.yx", self.variable(Ushort2)),
        }
    }

    /// Every variable goes into the item's row. All NaNs are one, and so are the two zeros.
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
