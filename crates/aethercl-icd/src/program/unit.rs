//! Sources of a program with their options and headers. A program binary is this data in serialized form.

use aethercl::options::BuildOptions;
use aethercl::{BuildError, Includes, Source, Target};
use serde::{Deserialize, Serialize};

/// One source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    /// OpenCL C.
    pub text: String,
    /// Build options.
    pub options: String,
    /// Embedded headers (`clCompileProgram`): names and contents.
    pub headers: Vec<(String, String)>,
}

/// The type of a program binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Compiled object, not linked.
    Object,
    /// A library of compiled programs.
    Library,
    /// Executable.
    Executable,
}

/// All sources of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unit {
    /// Its type.
    pub kind: Kind,
    /// Its sources in order.
    pub texts: Vec<Text>,
    /// Options of the link, or of the build from a binary.
    pub options: String,
}

/// Magic bytes of a binary; the number is the format version.
const MAGIC: &[u8] = b"AETHERCL-BINARY-1\n";
/// Name of a program's source in messages.
const NAME: &str = "<source>";

impl Unit {
    /// Serializes it.
    pub fn binary(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(serde_json::to_vec(self).unwrap_or_default());
        out
    }

    /// Parses a binary; `None` if it is not valid.
    pub fn from_binary(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes.strip_prefix(MAGIC)?).ok()
    }

    /// Builds it for a device.
    ///
    /// # Errors
    /// The build log.
    pub fn build(&mut self, target: &Target) -> Result<aethercl::Program, BuildError> {
        if let [one] = &mut self.texts[..] {
            let (source, includes) = (Source { name: NAME, text: &one.text }, one.includes());
            let built = aethercl::Program::build_for(&source, &one.options, &includes, target)?;
            one.keep(&includes);
            return Ok(built);
        }
        // Several sources: each is preprocessed with its own options and headers, then they are concatenated.
        let mut joined = String::new();
        let mut known: Vec<String> = Vec::new();
        for text in &self.texts {
            let source = Source { name: NAME, text: &text.text };
            let plain = aethercl::preprocessed(&source, &text.options, &text.includes(), target)?;
            for item in items(&plain) {
                // Declarations from headers occur once per source that included them, so duplicates are removed. Duplicate definitions are kept, so
                // that the compiler reports them.
                let words = item.split_whitespace().collect::<Vec<_>>().join(" ");
                if known.contains(&words) && !defines(&words) {
                    continue;
                }
                known.push(words);
                joined += item;
                joined.push('\n');
            }
        }
        let source = Source { name: "<linked>", text: &joined };
        aethercl::Program::build_for(&source, &self.joint_options()?, &Includes::none(), target)
    }

    /// Merges the options of all sources: the latest language version, and relaxed arithmetic only if all sources request it.
    ///
    /// # Errors
    /// A message if only some sources use single-precision constants: one source cannot have both.
    fn joint_options(&self) -> Result<String, BuildError> {
        let all: Vec<BuildOptions> =
            self.texts.iter().map(|t| BuildOptions::parse(&t.options).unwrap_or_default()).collect();
        let version = all.iter().map(|o| o.version).max().unwrap_or(120);
        let mut out = format!("-cl-std=CL{}.{}", version / 100, version / 10 % 10);
        let single = all.iter().filter(|o| o.single_precision_constant).count();
        if single != 0 && single != all.len() {
            let log = "error: some programs were compiled with -cl-single-precision-constant and some without; compile all of \
                       them one way to link them\n";
            return Err(BuildError { log: log.into() });
        }
        if single != 0 {
            out += " -cl-single-precision-constant";
        }
        if all.iter().all(|o| o.fast_relaxed_math) {
            out += " -cl-fast-relaxed-math";
        }
        Ok(out)
    }

    /// Compiles every source separately; called functions may be defined in other sources. Headers on disk become part of the unit, so that a later
    /// link or build does not need the files.
    ///
    /// # Errors
    /// The log.
    pub fn compile(&mut self, target: &Target) -> Result<String, BuildError> {
        let mut log = String::new();
        for text in &mut self.texts {
            let (source, includes) = (Source { name: NAME, text: &text.text }, text.includes());
            log += &aethercl::check_unit(&source, &text.options, &includes, target)?;
            text.keep(&includes);
        }
        Ok(log)
    }
}

impl Text {
    fn includes(&self) -> Includes {
        self.headers.iter().fold(Includes::from_disk(), |all, (name, text)| all.with(name, text))
    }

    fn keep(&mut self, includes: &Includes) {
        self.headers.extend(includes.read_from_disk());
    }
}

/// Returns true if a top-level item (normalized white space) defines a function or variable with external linkage.
fn defines(item: &str) -> bool {
    let words = |w: &str| item.split(|c: char| !c.is_alphanumeric() && c != '_').any(|x| x == w);
    let own = ["static", "inline", "typedef", "struct", "union", "enum"].into_iter().any(words);
    let body = item.ends_with('}') && item.contains('(');
    let value = item.ends_with(';') && item.contains('=') && !item.starts_with("enum");
    (body && !words("static") && !words("inline")) || (value && !own)
}

/// Splits a preprocessed source into its top-level declarations and definitions.
fn items(text: &str) -> Vec<&str> {
    let (mut out, mut depth, mut start) = (Vec::new(), 0i32, 0);
    let mut function = false;
    let mut quote: Option<char> = None;
    let mut escaped = false;
    let mut last = ' ';
    for (i, c) in text.char_indices() {
        if let Some(q) = quote {
            if c == q && !escaped {
                quote = None;
            }
            escaped = c == '\\' && !escaped;
            continue;
        }
        let mut ends = false;
        match c {
            '"' | '\'' => quote = Some(c),
            '{' => {
                // A brace after a parameter list or an attribute opens a function body.
                function |= depth == 0 && last == ')';
                depth += 1;
            }
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '}' => {
                depth -= 1;
                ends = depth == 0 && function;
            }
            ';' => ends = depth == 0,
            _ => {}
        }
        if !c.is_whitespace() {
            last = c;
        }
        if ends {
            out.push(text[start..=i].trim());
            start = i + 1;
            function = false;
        }
    }
    if !text[start..].trim().is_empty() {
        out.push(text[start..].trim());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str, options: &str, headers: &[(&str, &str)]) -> Text {
        let headers = headers.iter().map(|(n, t)| ((*n).to_string(), (*t).to_string())).collect();
        Text { text: text.into(), options: options.into(), headers }
    }

    #[test]
    fn a_binary_comes_back() {
        let texts = vec![text("kernel void k() {}", "-D A=\"x y\"", &[("h.h", "int f(int);")])];
        let unit = Unit { kind: Kind::Executable, texts, options: "-w".into() };
        assert_eq!(Unit::from_binary(&unit.binary()), Some(unit));
        assert_eq!(Unit::from_binary(b"\x7fELF"), None);
    }

    #[test]
    fn texts_fall_apart_into_declarations() {
        let text = "struct s { int a; }; typedef int t; constant char c[] = \"};{\"; int f(int x) { return x; }\nkernel void k() { if (1) { ; } }";
        let found = items(text);
        assert_eq!(found.len(), 5, "{found:?}");
        assert_eq!((found[0], found[2]), ("struct s { int a; };", "constant char c[] = \"};{\";"));
    }

    #[test]
    fn texts_with_a_header_in_common_link() {
        let header = [("h.h", "struct pair { int a, b; };\nint sum(struct pair p);\n")];
        let one =
            text("#include \"h.h\"\nint sum(struct pair p) { return p.a + p.b + N; }", "-D N=1", &header);
        let two = text(
            "#include \"h.h\"\nkernel void k(global int *y) { struct pair p = { 1, N }; y[0] = sum(p); }",
            "-D N=2",
            &header,
        );
        let mut unit = Unit { kind: Kind::Executable, texts: vec![two, one], options: String::new() };
        unit.compile(&Target::default()).unwrap();
        let program = unit.build(&Target::default()).unwrap();
        assert_eq!(program.kernels()[0].name, "k");
    }

    #[test]
    fn what_two_texts_define_does_not_link() {
        let same = "int twice(int x) { return 2 * x; }";
        let link = |texts: Vec<Text>| {
            let mut unit = Unit { kind: Kind::Executable, texts, options: String::new() };
            unit.build(&Target::default()).map(|_| ()).map_err(|e| e.log)
        };
        let kernel = format!("{same} kernel void k(global int *y) {{ y[0] = twice(1); }}");
        let log = link(vec![text(&kernel, "", &[]), text(same, "", &[])]).unwrap_err();
        assert!(log.contains("twice"), "{log}");
        // A static function in a header occurs once in every source.
        let header =
            [("h.h", "static int twice(int x) { return 2 * x; }\ntypedef struct { int a; } pair;\n")];
        let one = text("#include \"h.h\"\nint four(void) { return twice(2); }", "", &header);
        let two = text(
            "#include \"h.h\"\nint four(void);\nkernel void k(global int *y) { y[0] = four(); }",
            "",
            &header,
        );
        assert_eq!(link(vec![one, two]), Ok(()));
    }

    #[test]
    fn variables_of_other_texts_are_reached_through_extern() {
        let link = |texts: &[&str]| {
            let texts = texts.iter().map(|t| text(t, "-cl-std=CL3.0", &[])).collect();
            let mut unit = Unit { kind: Kind::Executable, texts, options: String::new() };
            unit.compile(&Target::default()).unwrap();
            unit.build(&Target::default()).map(|_| ()).map_err(|e| e.log)
        };
        let user = "extern constant struct pair { int a, b; } p; extern global int n[];
            kernel void k(global int *y) { y[0] = p.b + n[1]; }";
        let owner = "constant struct pair { int a, b; } p = { 1, 2 }; global int n[2] = { 3, 4 };";
        assert_eq!(link(&[user, owner]), Ok(()));
        assert_eq!(link(&[owner, user]), Ok(()));
        let log = link(&[user]).unwrap_err();
        assert!(log.contains("variable 'p' is used but not defined"), "{log}");
        // A declared but unused variable needs no definition.
        assert_eq!(link(&["extern constant int absent; kernel void k(global int *y) { y[0] = 1; }"]), Ok(()));
    }

    #[test]
    fn headers_on_disk_stay_with_the_unit() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("n.h"), "#define N 7\n").unwrap();
        let options = format!("-I{}", folder.path().display());
        let texts = vec![text("#include \"n.h\"\nkernel void k(global int *y) { y[0] = N; }", &options, &[])];
        let mut unit = Unit { kind: Kind::Object, texts, options: String::new() };
        unit.compile(&Target::default()).unwrap();
        drop(folder);
        let mut again = Unit::from_binary(&unit.binary()).unwrap();
        assert!(again.build(&Target::default()).is_ok());
    }

    #[test]
    fn options_of_every_text_count() {
        let generic = text("int first(int *p) { return *p; }", "-cl-std=CL2.0", &[]);
        let kernel = "int first(int *p);\nkernel void k(global int *y) { int x = 1; y[0] = first(&x); }";
        let unit = |options: &str| {
            let texts = vec![text(kernel, options, &[]), generic.clone()];
            Unit { kind: Kind::Executable, texts, options: String::new() }
        };
        assert_eq!(unit("").joint_options().unwrap(), "-cl-std=CL2.0");
        assert!(unit("").build(&Target::default()).is_ok());
        assert!(unit("-cl-single-precision-constant").build(&Target::default()).is_err());
    }
}
