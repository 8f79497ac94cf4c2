//! The text that a person reads in a file: comments and longer strings of sources, and the prose of documents.

/// A piece of text and the line where it begins.
pub struct Prose {
    pub line: usize,
    pub text: String,
}

/// Strings with fewer words are names, keys or formats.
const MIN_WORDS: usize = 5;

/// Returns the text of a file with this ending.
pub fn of(ending: &str, source: &str) -> Vec<Prose> {
    match ending {
        "md" => markdown(source),
        "py" | "pyi" => python(source),
        _ => code(source, ending == "rs"),
    }
}

/// Adds a line to the paragraph that ends on the line before, or starts a new paragraph. An empty line ends a paragraph.
fn add_line(out: &mut Vec<(Prose, usize)>, line: usize, text: &str) {
    let text = text.trim();
    if text.is_empty() {
        return end_paragraph(out);
    }
    match out.last_mut() {
        Some((prose, last)) if *last + 1 == line && !begins_paragraph(text) && !prose.text.is_empty() => {
            prose.text.push(' ');
            prose.text.push_str(text);
            *last = line;
        }
        _ => out.push((Prose { line, text: text.to_owned() }, line)),
    }
    if text.ends_with(':') || text.starts_with('#') {
        end_paragraph(out);
    }
}

/// Makes the next line start a paragraph.
fn end_paragraph(out: &mut Vec<(Prose, usize)>) {
    out.push((Prose { line: 0, text: String::new() }, 0));
}

/// Returns whether a line is not a continuation: items of lists, headings, quotes, and rows of aligned columns.
fn begins_paragraph(text: &str) -> bool {
    let item = text.contains("  ") || text.strip_prefix("- ").or_else(|| text.strip_prefix("* ")).is_some();
    item || text.starts_with(['|', '#', '>', '@', '`']) || text.starts_with(|c: char| c.is_ascii_digit())
}

fn paragraphs(lines: Vec<(Prose, usize)>) -> Vec<Prose> {
    lines.into_iter().map(|(prose, _)| prose).filter(|prose| !prose.text.is_empty()).collect()
}

/// Prose outside of code blocks. A row of a table counts as one paragraph per cell.
fn markdown(source: &str) -> Vec<Prose> {
    let (mut out, mut fenced) = (Vec::new(), false);
    for (n, line) in source.lines().enumerate().map(|(n, line)| (n + 1, line.trim())) {
        if line.starts_with("```") {
            fenced = !fenced;
            add_line(&mut out, n, "");
        } else if line.starts_with('|') {
            for cell in line.split('|') {
                add_line(&mut out, n, cell);
                add_line(&mut out, n, "");
            }
        } else if line.starts_with('#') {
            // Headings are noun phrases.
            add_line(&mut out, n, "");
        } else if !fenced && !line.starts_with('<') {
            add_line(&mut out, n, line);
        }
    }
    paragraphs(out)
}

/// Keeps a string of prose: one with enough words that is not a kernel's source.
fn add_string(strings: &mut Vec<Prose>, line: usize, text: &str) {
    let is_source = ["kernel void", "#include", "#define", "{% ", "=> {", "<script"];
    if text.split_whitespace().count() >= MIN_WORDS && !is_source.iter().any(|mark| text.contains(mark)) {
        strings.push(Prose { line, text: text.to_owned() });
    }
}

/// Returns whether code is in front of `rest` in its line.
fn follows_code(source: &str, rest: &str) -> bool {
    let before = &source[..source.len() - rest.len()];
    !before.rsplit('\n').next().unwrap_or_default().trim().is_empty()
}

/// Comments of a Python file, and strings, among them the documentation.
fn python(source: &str) -> Vec<Prose> {
    let (mut comments, mut strings) = (Vec::new(), Vec::new());
    let (mut rest, mut line) = (source, 1);
    while let Some(c) = rest.chars().next() {
        let mut taken = c.len_utf8();
        if c == '#' {
            let text = rest.lines().next().unwrap_or_default();
            taken = text.len();
            let follows_code = follows_code(source, rest);
            if follows_code {
                end_paragraph(&mut comments);
            }
            add_line(&mut comments, line, text.trim_start_matches(['#', '!']));
            if follows_code {
                end_paragraph(&mut comments);
            }
        } else if c == '"' || c == '\'' {
            let triple: String = [c; 3].iter().collect();
            let mark = if rest.starts_with(&triple) { triple } else { c.to_string() };
            let text = string(&rest[mark.len()..], &mark);
            taken = rest.len().min(text.len() + 2 * mark.len());
            for (n, paragraph) in text.split("\n\n").enumerate() {
                let before: usize = text.split("\n\n").take(n).map(|p| p.matches('\n').count() + 2).sum();
                add_string(&mut strings, line + before, paragraph);
            }
        }
        line += rest[..taken].matches('\n').count();
        rest = &rest[taken..];
    }
    comments.extend(strings.into_iter().map(|prose| (prose, 0)));
    paragraphs(comments)
}

/// Returns the text up to the end mark of a string. A backslash quotes the next character.
fn string<'a>(text: &'a str, end: &str) -> &'a str {
    let mut at = 0;
    while at < text.len() && !text[at..].starts_with(end) {
        let mut chars = text[at..].chars();
        let c = chars.next().map_or(1, char::len_utf8);
        at += c + if text[at..].starts_with('\\') { chars.next().map_or(0, char::len_utf8) } else { 0 };
    }
    &text[..at.min(text.len())]
}

/// Comments and strings of Rust, C, OpenCL C or the scripts of a page.
fn code(source: &str, rust: bool) -> Vec<Prose> {
    let (mut comments, mut strings) = (Vec::new(), Vec::new());
    let (mut rest, mut line, mut before, mut fenced) = (source, 1, ' ', false);
    while let Some(c) = rest.chars().next() {
        let mut taken = c.len_utf8();
        if rest.starts_with("//") && before != ':' {
            let text = rest.lines().next().unwrap_or_default();
            taken = text.len();
            let follows_code = follows_code(source, rest);
            if follows_code {
                end_paragraph(&mut comments);
            }
            let text = text.trim_start_matches(['/', '!']);
            let fence = text.trim_start().starts_with("```");
            fenced = fenced != fence;
            add_line(&mut comments, line, if fenced || fence { "" } else { text });
            if follows_code {
                end_paragraph(&mut comments);
            }
        } else if rest.starts_with("/*") {
            taken = rest.find("*/").map_or(rest.len(), |end| end + 2);
            for (n, text) in rest[..taken].lines().enumerate() {
                let text = text.trim().trim_start_matches(['/', '*', '!']).trim_end_matches(['/', '*']);
                add_line(&mut comments, line + n, text);
            }
        } else if let Some(raw) = rust.then(|| raw_string(rest)).flatten() {
            taken = raw;
            add_string(&mut strings, line, &rest[..taken]);
        } else if c == '"' {
            let text = string(&rest[1..], "\"");
            taken = rest.len().min(text.len() + 2);
            // A backslash at the end of a line joins it with the next one.
            let joined: Vec<&str> = text.split("\\\n").map(str::trim_start).collect();
            add_string(&mut strings, line, &joined.concat());
        } else if c == '\'' {
            taken = character(rest).unwrap_or(1);
        }
        line += rest[..taken].matches('\n').count();
        before = rest[..taken].chars().next_back().unwrap_or(' ');
        rest = &rest[taken..];
    }
    comments.extend(strings.into_iter().map(|prose| (prose, 0)));
    paragraphs(comments)
}

/// Returns the length of the raw string that begins here.
fn raw_string(text: &str) -> Option<usize> {
    let marks = text.strip_prefix('r')?;
    let hashes = marks.len() - marks.trim_start_matches('#').len();
    marks[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let begin = 1 + hashes + 1;
    Some(begin + text[begin..].find(&end)? + end.len())
}

/// Returns the length of the character literal that begins here; `None` for a lifetime or an apostrophe.
fn character(text: &str) -> Option<usize> {
    let mut chars = text[1..].chars();
    let first = chars.next()?;
    if first == '\\' {
        let end = 3 + text[3..].find('\'')?;
        return Some(end + 1).filter(|end| *end <= 12);
    }
    (chars.next()? == '\'').then(|| 1 + first.len_utf8() + 1)
}
