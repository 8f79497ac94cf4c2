//! Expressions of each type.

use super::{Kind, Writer};

impl Writer {
    pub(super) fn condition(&mut self) -> String {
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

    pub(super) fn expression(&mut self, kind: Kind, depth: usize) -> String {
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

    /// Generates a condition of small depth.
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
}
