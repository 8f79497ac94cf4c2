//! Damages files: flips, cuts and duplicates bytes, and sets fields of the structure to unexpected values.

use netcl::device::draw::Draw;
use serde_json::{Value, json};

/// Structure of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Gguf,
    Safetensors,
    Json,
    Text,
    Bytes,
}

impl Kind {
    pub fn of(name: &str) -> Self {
        match name.rsplit_once('.').map_or("", |(_, end)| end) {
            "gguf" => Self::Gguf,
            "safetensors" => Self::Safetensors,
            "json" => Self::Json,
            "jinja" => Self::Text,
            _ => Self::Bytes,
        }
    }
}

/// Damages files at random.
pub struct Damage(Draw);

impl Damage {
    pub fn new(seed: u64) -> Self {
        Self(Draw::new(seed))
    }
    fn next(&mut self) -> u64 {
        self.0.word()
    }
    pub fn below(&mut self, n: usize) -> usize {
        self.0.below(n)
    }
    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        self.0.pick(all).clone()
    }

    /// Returns a number that is likely to break sizes and counts.
    fn extreme(&mut self, old: u64) -> u64 {
        match self.below(10) {
            0 => old.wrapping_add(1),
            1 => old.wrapping_sub(1),
            2 => old.wrapping_mul(2),
            3 => self.next(),
            4 => 1 << self.below(64),
            5 => u64::MAX >> self.below(64),
            _ => self.of(&[0, 1, 2, 3, 31, 32, 33, 255, 1 << 16, 1 << 31, 1 << 32, 1 << 61, u64::MAX]),
        }
    }

    pub fn file(&mut self, bytes: &mut Vec<u8>, kind: Kind) {
        let whole = bytes.clone();
        let raw = self.below(6) == 0;
        match kind {
            Kind::Gguf if !raw => {
                for _ in 0..self.of(&[1, 1, 1, 2, 3]) {
                    self.gguf(bytes);
                }
            }
            Kind::Safetensors if !raw => self.safetensors(bytes),
            Kind::Json if !raw => self.json_file(bytes),
            Kind::Text => self.text(bytes),
            _ => {
                let head = match kind {
                    Kind::Gguf => fields(bytes).last().map_or(bytes.len(), |(at, ..)| at + 8),
                    Kind::Safetensors => 8 + number(bytes, 0, 8) as usize,
                    _ => bytes.len(),
                };
                self.bytes(bytes, head);
            }
        }
        if *bytes == whole {
            bytes.push(0);
        }
    }

    /// Damages bytes, mostly in the first `head` bytes, which are parsed.
    fn bytes(&mut self, bytes: &mut Vec<u8>, head: usize) {
        for _ in 0..=self.below(4) {
            let within = if self.below(8) == 0 { bytes.len() } else { head.min(bytes.len()) };
            let at = self.below(within);
            match self.below(9) {
                0 => bytes.truncate(at),
                1 => bytes.splice(at..at, [self.next() as u8; 3]).for_each(drop),
                2 => {
                    let part = bytes[at..(at + 40).min(bytes.len())].to_vec();
                    bytes.splice(at..at, part).for_each(drop);
                }
                3 => {
                    let end = (at + 8).min(bytes.len());
                    let with = self.of(&[0, 0x7f, 0x80, 0xff]);
                    bytes[at..end].fill(with);
                }
                4 => {
                    let end = (at + 1 + self.below(16)).min(bytes.len());
                    bytes.drain(at..end).for_each(drop);
                }
                5 => {
                    let from = self.below(within).min(bytes.len());
                    let part = bytes[from..(from + self.below(64)).min(bytes.len())].to_vec();
                    let end = (at + part.len()).min(bytes.len());
                    bytes[at..end].copy_from_slice(&part[..end - at]);
                }
                _ => {
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= 1 << self.below(8);
                    }
                }
            }
        }
    }

    /// Changes a count, length, type or offset of a GGUF header.
    fn gguf(&mut self, bytes: &mut [u8]) {
        let fields = fields(bytes);
        if fields.is_empty() {
            return;
        }
        // Half of the changes affect values, which keep the structure intact, so that later parts are reached.
        let values: Vec<_> = fields.iter().filter(|(.., value)| *value).copied().collect();
        let only = !values.is_empty() && self.below(2) == 0;
        let (at, size, value) = self.of(if only { &values } else { &fields });
        let old = number(bytes, at, size);
        if value && size == 1 {
            bytes[at] = self.of(&[0, 1, 0x20, 0x41, 0x7f, 0xe2, 0xff, bytes[at] ^ 1]);
            return;
        }
        let new = if size == 4 && self.below(2) == 0 { self.below(42) as u64 } else { self.extreme(old) };
        bytes[at..at + size].copy_from_slice(&new.to_le_bytes()[..size]);
    }

    fn safetensors(&mut self, bytes: &mut Vec<u8>) {
        let length = number(bytes, 0, 8) as usize;
        let Some(header) = bytes.get(8..8 + length) else { return self.bytes(bytes, 8) };
        let Ok(mut header) = serde_json::from_slice::<Value>(header) else { return self.bytes(bytes, 8) };
        for _ in 0..=self.below(2) {
            self.json(&mut header);
        }
        let header = header.to_string().into_bytes();
        let claimed =
            if self.below(6) == 0 { self.extreme(header.len() as u64) } else { header.len() as u64 };
        *bytes = [&claimed.to_le_bytes()[..], &header, &bytes[8 + length..]].concat();
    }

    fn json_file(&mut self, bytes: &mut Vec<u8>) {
        let Ok(mut json) = serde_json::from_slice::<Value>(bytes) else {
            return self.bytes(bytes, usize::MAX);
        };
        for _ in 0..=self.below(3) {
            self.json(&mut json);
        }
        *bytes = json.to_string().into_bytes();
        if self.below(20) == 0 {
            let (open, close) = self.of(&[("[", "]"), ("{\"a\":", "}")]);
            let deep = self.of(&[100, 1000, 100_000]);
            *bytes = [open.repeat(deep), "0".into(), close.repeat(deep)].concat().into_bytes();
        }
    }

    /// Changes a value in `json`, or renames or removes a key.
    fn json(&mut self, json: &mut Value) {
        let deeper = self.below(5) > 0;
        match json {
            Value::Object(map) if deeper && !map.is_empty() => {
                let keys: Vec<String> = map.keys().cloned().collect();
                let key = self.of(&keys);
                match self.below(10) {
                    0 => drop(map.remove(&key)),
                    1 => {
                        let value = map.remove(&key).unwrap_or_default();
                        map.insert(
                            format!("{key}{}", self.of(&["_", "/../x", "s", "\u{0}", "\u{301}"])),
                            value,
                        );
                    }
                    2 => {
                        let value = map[&key].clone();
                        map.insert(self.of(&keys), value);
                    }
                    _ => self.json(map.entry(key).or_insert(Value::Null)),
                }
            }
            Value::Array(all) if deeper && !all.is_empty() => {
                let at = self.below(all.len());
                match self.below(8) {
                    0 => drop(all.remove(at)),
                    1 => all.insert(at, all[at].clone()),
                    _ => self.json(&mut all[at]),
                }
            }
            Value::String(text) if deeper => {
                let mut bytes = std::mem::take(text).into_bytes();
                self.text(&mut bytes);
                *text = String::from_utf8_lossy(&bytes).into_owned();
            }
            Value::Number(old) if deeper => {
                let old = old.as_u64().unwrap_or(0);
                *json = json!(self.extreme(old));
            }
            _ => *json = self.value(),
        }
    }

    fn value(&mut self) -> Value {
        self.of(&[
            json!(0),
            json!(1),
            json!(-1),
            json!(0.5),
            json!(3),
            json!(i32::MAX),
            json!(1u64 << 31),
            json!(1u64 << 32),
            json!((1u64 << 53) + 1),
            json!(i64::MAX),
            json!(u64::MAX),
            json!(1e308),
            json!(-1e-300),
            json!(null),
            json!(true),
            json!(false),
            json!(""),
            json!("../../../etc/passwd"),
            json!("F64"),
            json!("a".repeat(5000)),
            json!("(a+)+$"),
            json!("\u{0}\u{feff}\u{10ffff}"),
            json!([]),
            json!({}),
            json!([1, 2, 3]),
            json!([[0, u64::MAX]]),
            json!({ "a": { "b": [1] } }),
            json!({ "type": "Sequence", "normalizers": [], "pretokenizers": [], "decoders": [], "processors": [] }),
            json!({ "type": "Split", "pattern": { "Regex": "(x+x+)+y|(?=a)*" }, "behavior": "Isolated", "invert": true }),
            json!({ "type": "Prepend", "prepend": "▁" }),
            json!({ "type": "Replace", "pattern": { "String": "" }, "content": "aa" }),
        ])
    }

    /// Inserts, removes and duplicates pieces of templates.
    fn text(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.of(&[1, 1, 1, 2, 4]) {
            if self.below(4) == 0 {
                self.bytes(bytes, usize::MAX);
                continue;
            }
            let mut at = self.below(bytes.len() + 1);
            if self.below(2) == 0 {
                // Inserts after a tag, where a statement is allowed.
                let closes = |pair: &[u8]| pair == b"%}" || pair == b"}}";
                at += bytes[at..].windows(2).position(closes).map_or(0, |next| next + 2);
                let piece = self.of(&PIECES[..STATEMENTS]);
                bytes.splice(at..at, piece.bytes()).for_each(drop);
                continue;
            }
            let end = (at + self.below(24)).min(bytes.len());
            let piece: &[u8] = self.of(&PIECES).as_bytes();
            let times = if self.below(30) == 0 { 1 + self.below(3000) } else { 1 };
            bytes.splice(at..if self.below(2) == 0 { at } else { end }, piece.repeat(times)).for_each(drop);
        }
    }
}

/// Number of [`PIECES`] that are allowed anywhere in a template.
const STATEMENTS: usize = 34;

/// Pieces of templates, including some that need much time or memory.
const PIECES: [&str; 60] = [
    "{% for x in range(100000000) %}{{ x }}{% endfor %}",
    "{% for x in messages %}{% for y in x %}{{ loop.index0 }}{{ y }}{% endfor %}{% endfor %}",
    "{% if messages %}a{% elif true %}b{% else %}c{% endif %}",
    "{% set x = (x ~ x) if x is defined else 'xxxxxxxx' %}",
    "{% set ns = namespace(a=messages) %}{% for i in range(99) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a }}",
    "{% set ns = namespace(a='a') %}{% for i in range(99) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}{{ ns.a | length }}",
    "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "{% macro g(x, y=[]) %}{{ caller() }}{% endmacro %}{% call g(1) %}{{ messages }}{% endcall %}",
    "{{ 'a' * 1000000000 }}",
    "{{ [messages] * 1000000 }}",
    "{{ range(1000000000) | list }}",
    "{{ messages | tojson(indent=100000) }}",
    "{{ '%s' % messages }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ 'x'.ljust(1000000000) }}",
    "{{ messages[::-1] }}",
    "{{ messages[0:999999999:0] }}",
    "{{ messages[-9223372036854775808:] }}",
    "{{ messages[0].content.split('') }}",
    "{{ messages[0].content.replace('', 'aaaaaaaa') }}",
    "{{ messages | map(attribute='role') | join('x') }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list }}",
    "{{ strftime_now('%Y%9999999d') }}",
    "{{ strftime_now('%é%') }}",
    "{{ 1 // 0 }}",
    "{{ 1 % 0 }}",
    "{{ 2 ** 100000 }}",
    "{{ 9223372036854775807 + 1 }}",
    "{{ -9223372036854775808 // -1 }}",
    "{{ 1.0e308 * 10 | int }}",
    "{% filter upper %}{{ messages }}{% endfilter %}",
    "{{ dict(a=1).items() | list | sort | unique | batch(0) | list }}",
    "{{ messages | slice(1000000000) | list }}",
    "{{ ('a' ~ 'é\u{301}')[1:] | indent(1000000000) | wordcount }}",
    "{%",
    "%}",
    "{{",
    "}}",
    "{#",
    "#}",
    "{%-",
    "-%}",
    "{% for m in messages %}",
    "{% endfor %}",
    "{% else %}",
    "{% endif %}",
    "{% set x = ",
    "{{ raise_exception('no') }}",
    "{% raw %}",
    "{% endraw %}",
    "{% generation %}",
    "{% break %}",
    " is defined and not ",
    " in messages | ",
    "((((((((",
    "[[[[[[[[",
    "\u{0}",
    "é\u{301}",
    "'",
    "~",
];

/// Reads `size` bytes as a number.
fn number(bytes: &[u8], at: usize, size: usize) -> u64 {
    bytes.get(at..at + size).unwrap_or_default().iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// Position in a header, size, and whether it is a value instead of a count, length, type or offset.
type Field = (usize, usize, bool);

/// Returns the fields of a GGUF header that can still be parsed.
fn fields(bytes: &[u8]) -> Vec<Field> {
    let mut out = vec![(4, 4, false), (8, 8, false), (16, 8, false)];
    let (tensors, keys, mut at) = (number(bytes, 8, 8), number(bytes, 16, 8), 24);
    for _ in 0..keys.min(10_000) {
        if !text(bytes, &mut at, &mut out) || !value(bytes, &mut at, &mut out) {
            return out;
        }
    }
    for _ in 0..tensors.min(10_000) {
        if !text(bytes, &mut at, &mut out) || at + 4 > bytes.len() {
            return out;
        }
        let axes = number(bytes, at, 4) as usize;
        out.push((at, 4, false));
        at += 4;
        if axes > 8 || at + axes * 8 + 12 > bytes.len() {
            return out;
        }
        out.extend((0..axes).map(|i| (at + i * 8, 8, false)));
        at += axes * 8;
        out.extend([(at, 4, false), (at + 4, 8, false)]);
        at += 12;
    }
    out
}

fn text(bytes: &[u8], at: &mut usize, out: &mut Vec<Field>) -> bool {
    let length = number(bytes, *at, 8) as usize;
    let inside = bytes.len().saturating_sub(*at + 8) >= length;
    if inside {
        out.push((*at, 8, false));
        out.extend((0..length.min(64)).map(|i| (*at + 8 + i, 1, true)));
        *at += 8 + length;
    }
    inside
}

fn value(bytes: &[u8], at: &mut usize, out: &mut Vec<Field>) -> bool {
    if *at + 4 > bytes.len() {
        return false;
    }
    let kind = number(bytes, *at, 4);
    out.push((*at, 4, false));
    *at += 4;
    let size = |kind: u64| -> usize {
        match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            _ => 0,
        }
    };
    match kind {
        8 => return text(bytes, at, out),
        9 => {
            let (of, count) = (number(bytes, *at, 4), number(bytes, *at + 4, 8) as usize);
            if *at + 12 > bytes.len() {
                return false;
            }
            out.extend([(*at, 4, false), (*at + 4, 8, false)]);
            *at += 12;
            if of == 8 {
                return (0..count.min(100_000)).all(|_| text(bytes, at, out));
            }
            let (of, end) = (size(of), at.saturating_add(size(of).saturating_mul(count)));
            if end <= bytes.len() && of > 0 {
                out.extend((0..count.min(64)).map(|i| (*at + i * of, of, true)));
            }
            *at = end;
        }
        kind => {
            if size(kind) > 0 && *at + size(kind) <= bytes.len() {
                out.push((*at, size(kind), true));
            }
            *at += size(kind);
        }
    }
    *at <= bytes.len()
}
