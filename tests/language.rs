//! Plain English: rejects the phrases that docs/style.md advises against in comments, messages and documents, and public types with one name.
#![allow(clippy::unwrap_used)] // helpers of tests

#[path = "layering/files.rs"]
mod files;
#[path = "language/phrases.rs"]
mod phrases;
#[path = "language/prose.rs"]
mod prose;
#[path = "language/types.rs"]
mod types;

use files::{files, read};
use phrases::{
    ABSENCE, ABSENCE_ALLOWED, ALLOWED, AMONG, MAX_ABSENCES, MAX_AMONG, MAX_LONG_SENTENCES, MAX_WORDS,
    OPENERS, PHRASES,
};
use regex_automata::meta::Regex;

const ENDINGS: [&str; 8] = ["rs", "cl", "c", "h", "py", "pyi", "md", "html"];

/// A finding: file, line, phrase and advice.
struct Hit {
    file: String,
    line: usize,
    phrase: String,
    advice: &'static str,
}

impl std::fmt::Display for Hit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {:?}: {}", self.file, self.line, self.phrase, self.advice)
    }
}

/// All findings, by the rule that they break.
#[derive(Default)]
struct Hits {
    phrases: Vec<Hit>,
    absences: Vec<Hit>,
    among: Vec<Hit>,
    long: Vec<Hit>,
}

fn words(pattern: &str) -> Regex {
    Regex::new(&format!(r"(?-u:\b)(?:{pattern})(?-u:\b)")).unwrap()
}

/// Replaces code spans, paths, flags and identifiers, which are not prose, by one word.
fn without_code(text: &str) -> String {
    let (mut prose, mut depth) = (String::new(), 0_usize);
    for (n, part) in text.split('`').enumerate() {
        if n % 2 == 1 {
            prose.push_str("Code");
        }
        // Skip the placeholders of a format.
        for c in part.chars().filter(|_| n % 2 == 0) {
            match c {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ if depth == 0 => prose.push(c),
                _ => {}
            }
            if c == '{' && depth == 1 {
                prose.push_str("Code");
            }
        }
    }
    let is_code = |word: &str| {
        word.starts_with('-') && word.len() > 1
            || ["::", "_", "/", "\\", "()", "://"].iter().any(|mark| word.contains(mark))
    };
    let kept = |word: &str| {
        let end = word.len() - word.trim_end_matches(['.', ',', ';', ':', '?', '!']).len();
        if is_code(word) { format!("Code{}", &word[word.len() - end..]) } else { word.to_owned() }
    };
    prose.split_whitespace().map(kept).collect::<Vec<_>>().join(" ")
}

/// Splits at the ends of sentences. A sentence keeps its final mark.
fn sentences(text: &str) -> Vec<&str> {
    let (mut out, mut begin) = (Vec::new(), 0);
    for (at, _) in text.match_indices(' ') {
        if text[..at].ends_with(['.', '!', '?']) && text[at + 1..].starts_with(|c: char| c.is_uppercase()) {
            out.push(&text[begin..at]);
            begin = at + 1;
        }
    }
    out.push(&text[begin..]);
    out
}

/// Number of words; numbers and symbols of formulas do not count.
fn word_count(sentence: &str) -> usize {
    let is_word = |word: &&str| word.chars().filter(|c| c.is_alphabetic()).count() > 1 && !word.contains('=');
    sentence.split_whitespace().filter(is_word).count()
}

fn allowed(file: &str, phrase: &str) -> bool {
    ALLOWED.iter().any(|(place, what, _)| file.starts_with(place) && (what.is_empty() || *what == phrase))
}

fn examine() -> Hits {
    let rules: Vec<(Regex, &phrases::Phrase)> = PHRASES.iter().map(|p| (words(p.pattern), p)).collect();
    let (absence, among) = (words(ABSENCE.pattern), words(AMONG.pattern));
    let mut hits = Hits::default();
    for path in files(&ENDINGS) {
        let file = path.display().to_string();
        if allowed(&file, "") {
            continue;
        }
        let ending = path.extension().unwrap_or_default().to_string_lossy();
        for prose in prose::of(&ending, &read(&path)) {
            let text = without_code(&prose.text);
            let hit = |phrase: &str, advice| Hit {
                file: file.clone(),
                line: prose.line,
                phrase: phrase.into(),
                advice,
            };
            let lower = text.to_lowercase();
            for (rule, phrase) in &rules {
                for found in rule.find_iter(&lower) {
                    let rest = &lower[found.end()..];
                    let found = &lower[found.range()];
                    if !phrase.unless.iter().any(|u| rest.starts_with(u)) && !allowed(&file, found) {
                        hits.phrases.push(hit(found, phrase.advice));
                    }
                }
            }
            for found in absence.find_iter(&lower) {
                let found = &lower[found.range()];
                let what = found.rsplit(' ').next().unwrap_or_default();
                if !ABSENCE_ALLOWED.contains(&what) {
                    hits.absences.push(hit(found, ABSENCE.advice));
                }
            }
            for found in among.find_iter(&lower) {
                hits.among.push(hit(&lower[found.range()], AMONG.advice));
            }
            for sentence in sentences(&text) {
                let open =
                    OPENERS.iter().find(|o| sentence.strip_prefix(**o).is_some_and(|s| s.starts_with(' ')));
                if let Some(open) = open.filter(|open| !sentence.ends_with('?') && !allowed(&file, open)) {
                    hits.phrases
                        .push(hit(open, "opens a sentence: begin with the subject, \"if\" or \"when\""));
                }
                if word_count(sentence) > MAX_WORDS {
                    let begin: String = sentence.chars().take(60).collect();
                    hits.long.push(hit(&begin, "a sentence with more than 30 words: write two"));
                }
            }
        }
    }
    hits
}

fn listed(hits: &[Hit]) -> String {
    hits.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn comments_messages_and_documents_are_plain_english() {
    let hits = examine();
    let mut wrong = String::new();
    if !hits.phrases.is_empty() {
        wrong += &format!(
            "see docs/style.md, or add the place to ALLOWED with a reason:\n{}\n",
            listed(&hits.phrases)
        );
    }
    let counted = [
        ("places that describe absence", &hits.absences, MAX_ABSENCES),
        ("times \"among\"", &hits.among, MAX_AMONG),
        ("long sentences", &hits.long, MAX_LONG_SENTENCES),
    ];
    for (what, hits, most) in counted {
        if hits.len() > most {
            wrong +=
                &format!("{} {what}, at most {most}; rewrite the new ones:\n{}\n", hits.len(), listed(hits));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn every_allowed_place_still_exists() {
    let sources: Vec<(String, String)> =
        files(&ENDINGS).iter().map(|path| (path.display().to_string(), read(path).to_lowercase())).collect();
    for (place, phrase, reason) in ALLOWED {
        assert!(!reason.is_empty(), "{place}, {phrase}: give a reason");
        let found = sources
            .iter()
            .any(|(file, text)| file.starts_with(place) && text.contains(&phrase.to_lowercase()));
        assert!(found, "{place} does not contain {phrase:?}; remove it from ALLOWED");
    }
}

#[test]
fn the_rules_themselves() {
    let source = "//! Reads rows. What it\n//! has read is kept.\nlet x = 'a'; // beside\nf(\"one two three four \\\n  five six\"); r#\"a // b\"#;";
    let found: Vec<(usize, String)> = prose::of("rs", source).into_iter().map(|p| (p.line, p.text)).collect();
    let expected =
        [(1, "Reads rows. What it has read is kept."), (3, "beside"), (4, "one two three four five six")];
    assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
    let found: Vec<(usize, String)> = prose::of("md", "# Title\n\nOne\ntwo.\n```\ncode\n```\n| a | b |\n")
        .into_iter()
        .map(|p| (p.line, p.text))
        .collect();
    assert_eq!(found, [(3, "One two."), (8, "a"), (8, "b")].map(|(line, text)| (line, text.to_owned())));
    let found: Vec<String> = prose::of("py", "x = 'a b'  # why\n\"\"\"Says what one two three.\"\"\"")
        .into_iter()
        .map(|p| p.text)
        .collect();
    assert_eq!(found, ["why", "Says what one two three."]);
    assert_eq!(sentences("See e.g. this. Of that? Yes"), ["See e.g. this.", "Of that?", "Yes"]);
    assert_eq!(without_code("The `x y` of a_b, --dequantise."), "The Code of Code, Code.");
    assert_eq!(word_count("y = x + 2 for all rows"), 3);
    assert!(words("beside").is_match("is beside it") && !words("beside").is_match("besides"));
}
