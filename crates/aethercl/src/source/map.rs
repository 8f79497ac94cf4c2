//! Origin of every token: files, lines renamed by `#line`, and macro expansions.

/// A source range: offsets into the [`SourceMap`], and the macro expansion it came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// First byte; files are concatenated.
    pub lo: u32,
    /// End: the byte after the last one.
    pub hi: u32,
    /// Expansion that the token belongs to: 0 for none, otherwise an index into the map's expansions plus 1.
    pub expansion: u32,
}

/// One use of a macro.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expansion {
    /// The macro's name.
    pub name: String,
    /// Span of its use; may itself be in an expansion.
    pub call: Span,
}

/// A position in message format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// File name, including changes by `#line`.
    pub file: String,
    /// Line from 1, including changes by `#line`.
    pub line: u32,
    /// Column from 1, in bytes.
    pub column: u32,
    /// The whole line without its line end.
    pub text: String,
}

#[derive(Clone, Debug)]
struct File {
    name: String,
    text: String,
    base: u32,
    line_starts: Vec<u32>,
    /// `#line` directives: offset in the file, line number of the next line, new name.
    renames: Vec<Rename>,
}

#[derive(Clone, Debug)]
struct Rename {
    physical_line: u32,
    line: u32,
    name: Option<String>,
}

/// All sources of one build.
#[derive(Clone, Debug, Default)]
pub struct SourceMap {
    files: Vec<File>,
    expansions: Vec<Expansion>,
    next: u32,
}

/// Maximum total length of all sources of a build: positions are 32-bit.
const MAX_BYTES: usize = 1 << 30;

impl SourceMap {
    /// Returns name and content of each file.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|f| (f.name.as_str(), f.text.as_str()))
    }

    /// Adds a file and returns the offset of its first byte; `None` if the build has become too large.
    pub fn add(&mut self, name: &str, text: String) -> Option<u32> {
        let base = self.next;
        if text.len() >= MAX_BYTES - base as usize {
            return None;
        }
        let mut line_starts = vec![0];
        line_starts.extend(text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i as u32 + 1));
        self.next = base + text.len() as u32 + 1;
        self.files.push(File { name: name.into(), text, base, line_starts, renames: Vec::new() });
        Some(base)
    }

    /// Records a use of macro `name`; its tokens carry the result in [`Span::expansion`].
    pub fn expand(&mut self, name: &str, call: Span) -> u32 {
        self.expansions.push(Expansion { name: name.into(), call });
        self.expansions.len() as u32
    }

    /// Returns the expansion of a span, if it came out of one.
    pub fn expansion(&self, span: Span) -> Option<&Expansion> {
        self.expansions.get((span.expansion as usize).checked_sub(1)?)
    }

    /// Numbers the lines after the line of `at` starting at `line`, and assigns them to file `name`.
    pub fn rename(&mut self, at: u32, line: u32, name: Option<String>) {
        if let Some(i) = self.file_of(at) {
            let file = &mut self.files[i];
            let physical_line = line_index(file, at - file.base) + 1;
            file.renames.push(Rename { physical_line, line, name });
        }
    }

    /// Returns the position of a span in a file: for a token from macros, the outermost use.
    pub fn outermost(&self, mut span: Span) -> Span {
        while let Some(e) = self.expansion(span) {
            span = e.call;
        }
        span
    }

    /// Returns file, line and column of a span's first byte.
    pub fn locate(&self, span: Span) -> Location {
        let Some(file) = self.file_of(span.lo).map(|i| &self.files[i]) else {
            return Location { file: String::new(), line: 0, column: 0, text: String::new() };
        };
        let at = span.lo - file.base;
        let index = line_index(file, at);
        let start = file.line_starts[index as usize];
        let text = file.text[start as usize..].lines().next().unwrap_or("").to_string();
        let (mut name, mut line) = (&file.name, index + 1);
        for r in file.renames.iter().filter(|r| r.physical_line <= index) {
            name = r.name.as_ref().unwrap_or(name);
            line = r.line.saturating_add(index - r.physical_line);
        }
        Location { file: name.clone(), line, column: at - start + 1, text }
    }

    /// Returns the source text of a span.
    pub fn text(&self, span: Span) -> &str {
        let Some(file) = self.file_of(span.lo).map(|i| &self.files[i]) else { return "" };
        let at = |offset: u32| (offset.saturating_sub(file.base) as usize).min(file.text.len());
        file.text.get(at(span.lo)..at(span.hi)).unwrap_or("")
    }

    fn file_of(&self, at: u32) -> Option<usize> {
        self.files.partition_point(|f| f.base <= at).checked_sub(1)
    }
}

/// Returns the index from 0 of the file's line that contains byte `at`.
fn line_index(file: &File, at: u32) -> u32 {
    (file.line_starts.partition_point(|s| *s <= at) as u32).saturating_sub(1)
}
