//! The launch of a case's program. A line is a word and its values. `#` starts a comment.
//!
//! ```text
//! options -DN=4 -cl-std=CL3.0
//! without cl_khr_fp16                  the device lacks this extension
//! kernel sums                          which kernel runs; without this line the program is only built
//! global 8 2                           work-items; one to three numbers
//! group 4 1                            work-items of a group
//! offset 0 0                           global offset
//! checks none                          or names of checks (see `run.rs`); all without this line
//! buffer in float 8 read = 0 1 2 3 4 5 6 7
//! buffer out int 8 = 0                 one value fills it; no value leaves it unwritten
//! buffer same float 8 = 0..8           counts up
//! value float 1.5                      an argument by value; several numbers for a vector
//! local 64                             an argument of local memory, in bytes
//! ```
//! Arguments are listed in the order of the kernel's parameters.

/// A case's launch.
#[derive(Debug, Default)]
pub struct Sim {
    /// Build options.
    pub options: String,
    /// Extensions that the device lacks.
    pub without: Vec<String>,
    /// Kernel to run.
    pub kernel: String,
    /// Work-items.
    pub global: [usize; 3],
    /// Work-items per group.
    pub group: [usize; 3],
    /// Global offset.
    pub offset: [usize; 3],
    /// Names of checks.
    pub checks: Vec<String>,
    /// Arguments in order.
    pub args: Vec<SimArg>,
}

/// An argument.
#[derive(Debug)]
pub enum SimArg {
    /// A buffer with its contents before the launch. Without contents it stays unwritten.
    Buffer { name: String, element: Element, count: usize, read_only: bool, data: Option<Vec<u8>> },
    /// Bytes by value.
    Value(Vec<u8>),
    /// Local memory.
    Local(usize),
}

/// Type of a buffer's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// Signed integer of this many bytes.
    Signed(usize),
    /// Unsigned integer.
    Unsigned(usize),
    /// Floating-point number. 2 bytes are a `half`.
    Float(usize),
}

impl Element {
    fn named(name: &str) -> Result<Self, String> {
        Ok(match name {
            "char" => Self::Signed(1),
            "short" => Self::Signed(2),
            "int" => Self::Signed(4),
            "long" => Self::Signed(8),
            "uchar" => Self::Unsigned(1),
            "ushort" => Self::Unsigned(2),
            "uint" => Self::Unsigned(4),
            "ulong" => Self::Unsigned(8),
            "half" => Self::Float(2),
            "float" => Self::Float(4),
            "double" => Self::Float(8),
            other => return Err(format!("unknown element type '{other}'")),
        })
    }

    /// Returns the size of one element in bytes.
    pub fn size(self) -> usize {
        match self {
            Self::Signed(n) | Self::Unsigned(n) | Self::Float(n) => n,
        }
    }

    /// Returns the bytes of a number.
    fn bytes(self, word: &str) -> Result<Vec<u8>, String> {
        let wrong = |_| format!("'{word}' is no {self:?}");
        Ok(match self {
            Self::Float(4) => float(word).map(|v| v as f32).map_err(wrong)?.to_le_bytes().to_vec(),
            Self::Float(2) => {
                integer(word).map_err(|e| e + " (halves are given as bits)")?.to_le_bytes()[..2].to_vec()
            }
            Self::Float(_) => float(word).map_err(wrong)?.to_le_bytes().to_vec(),
            Self::Signed(n) | Self::Unsigned(n) => integer(word)?.to_le_bytes()[..n].to_vec(),
        })
    }

    /// Returns one element as text.
    pub fn text(self, bytes: &[u8]) -> String {
        let mut raw = [0u8; 8];
        raw[..bytes.len()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(raw);
        match self {
            Self::Signed(n) => {
                let unused = 64 - 8 * n as u32;
                ((bits << unused) as i64 >> unused).to_string()
            }
            Self::Unsigned(_) => bits.to_string(),
            Self::Float(4) => format!("{:?}", f32::from_bits(bits as u32)),
            Self::Float(2) => format!("{bits:#06x}"),
            Self::Float(_) => format!("{:?}", f64::from_bits(bits)),
        }
    }
}

fn float(word: &str) -> Result<f64, std::num::ParseFloatError> {
    word.parse()
}

fn integer(word: &str) -> Result<i128, String> {
    let (sign, digits) = word.strip_prefix('-').map_or((1, word), |d| (-1, d));
    let value = match digits.strip_prefix("0x") {
        Some(hex) => i128::from_str_radix(hex, 16),
        None => digits.parse(),
    };
    value.map(|v| sign * v).map_err(|_| format!("'{word}' is not an integer"))
}

impl Sim {
    /// Parses a `.sim` file.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut sim = Self { global: [1; 3], group: [1; 3], ..Self::default() };
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or("").trim();
            let Some((word, rest)) =
                line.split_once(char::is_whitespace).or((!line.is_empty()).then_some((line, "")))
            else {
                continue;
            };
            let rest = rest.trim();
            let words = || rest.split_whitespace().map(String::from);
            match word {
                "options" => sim.options = rest.into(),
                "without" => sim.without.extend(words()),
                "kernel" => sim.kernel = rest.into(),
                "global" => sim.global = sizes(rest, 1)?,
                "group" => sim.group = sizes(rest, 1)?,
                "offset" => sim.offset = sizes(rest, 0)?,
                "checks" => sim.checks.extend(words()),
                "buffer" => sim.args.push(buffer(rest)?),
                "value" => sim.args.push(value(rest)?),
                "local" => sim.args.push(SimArg::Local(rest.parse().map_err(|_| format!("'{rest}' bytes"))?)),
                other => return Err(format!("unknown word '{other}' in the .sim file")),
            }
        }
        Ok(sim)
    }
}

fn sizes(text: &str, default: usize) -> Result<[usize; 3], String> {
    let mut sizes = [default; 3];
    for (slot, word) in sizes.iter_mut().zip(text.split_whitespace()) {
        *slot = word.parse().map_err(|_| format!("'{word}' is not a size"))?;
    }
    Ok(sizes)
}

fn value(text: &str) -> Result<SimArg, String> {
    let (ty, numbers) = text.split_once(' ').ok_or("a value needs a type and a number")?;
    let element = Element::named(ty)?;
    let bytes: Result<Vec<_>, _> = numbers.split_whitespace().map(|w| element.bytes(w)).collect();
    Ok(SimArg::Value(bytes?.concat()))
}

fn buffer(text: &str) -> Result<SimArg, String> {
    let (head, values) = text.split_once('=').map_or((text, None), |(h, v)| (h, Some(v)));
    let words: Vec<&str> = head.split_whitespace().collect();
    let [name, ty, count, ref access @ ..] = words[..] else {
        return Err("a buffer needs a name, a type, a count".into());
    };
    let element = Element::named(ty)?;
    let count: usize = count.parse().map_err(|_| format!("'{count}' is not a count"))?;
    let data = match values {
        None => None,
        Some(values) => Some(contents(element, count, values)?),
    };
    let read_only = access.contains(&"read");
    Ok(SimArg::Buffer { name: name.into(), element, count, read_only, data })
}

fn contents(element: Element, count: usize, values: &str) -> Result<Vec<u8>, String> {
    let words: Vec<String> = match values.trim().split_once("..") {
        Some((first, _)) => {
            let first = integer(first.trim())?;
            (0..count as i128).map(|i| (first + i).to_string()).collect()
        }
        None => values.split_whitespace().map(String::from).collect(),
    };
    let bytes: Result<Vec<_>, _> = words.iter().map(|w| element.bytes(w)).collect();
    let bytes = bytes?.concat();
    match words.len() {
        1 => Ok(bytes.repeat(count)),
        n if n == count => Ok(bytes),
        n => Err(format!("{n} values for {count} elements")),
    }
}
