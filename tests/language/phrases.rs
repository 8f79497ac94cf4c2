//! Phrases of the project's former style, and what to write instead: the tables of docs/style.md.

/// A phrase that may occur only in the places of [`ALLOWED`].
pub struct Phrase {
    /// Regular expression over lower-case text, without code.
    pub pattern: &'static str,
    /// Continuations with which the phrase is correct.
    pub unless: &'static [&'static str],
    pub advice: &'static str,
}

const fn phrase(pattern: &'static str, advice: &'static str) -> Phrase {
    Phrase { pattern, unless: &[], advice }
}

pub const PHRASES: &[Phrase] = &[
    Phrase {
        pattern: "so (many|much|often)",
        unless: &[" that", " as"],
        advice: "write \"this many\", or name the number",
    },
    phrase("beside", "write \"next to\", \"compared with\" or \"together with\""),
    phrase("behind (it|them|the|a|an|each|what|this|that|others)", "write \"after\" or \"following\""),
    phrase("told|tells of", "write \"reported\", \"passed\" or \"known\""),
    phrase("(go|goes|going|went|gone) on (with|at|from|behind)", "write \"continue\" or \"resume\""),
    phrase("(is|are) none|are others", "write \"is not a …\" or \"differ\""),
    phrase(
        "(lie|lies|lay|stand|stands|stood) (in|at|on|under|where|there|side by side|one after|before|with)",
        "write \"is stored in\", \"is listed in\" or \"is in\"",
    ),
    phrase("(kernel|program)('s)? texts?|texts? of (a|the) (kernel|program)s?", "write \"kernel source\""),
    phrase("(held|hold|holds) (against|to (that|those|its|their))|within twice", "write \"compared with\""),
    phrase(
        "(items?|tokens?|bytes?|threads?|lines?|rows?|elements?|groups?|warps?|ranks?|files?|words?|\
         values?|copy|copies|one) an? (row|step|token|item|layer|group|head|byte|element|column|rank|batch|launch|\
         format|line|flag|kernel|device|second)",
        "write \"one … per …\"",
    ),
    phrase("whoever|thereof|whereof|hitherto|amongst|lest|nought", "use a current word"),
    phrase("that there (is|are)", "write \"exists\" or \"is available\", or leave it out"),
    phrase("one's own|of (its|their) own", "write \"own\" or \"separate\""),
    phrase("as (it|they|the \\w+|a \\w+) (has|have) (it|them|one)", "name the default: \"the family's\""),
    phrase("(which|that) (nobody|somebody|anybody) \\w+", "name who or what it is"),
    phrase("no multiple of", "write \"not a multiple of\""),
    phrase("(no )?signs? of life", "say what is missing: messages, output, progress"),
    phrase("as if it had not|what it has read|is to be", "write the fact: \"must be\", \"the cache\""),
    phrase(
        "colours?|behaviours?|neighbours?|neighbouring|favours?|honours?|centres?|centred|\
         labelled|labelling|modelled|modelling|cancelling|travelled|licence|licences|grey|artefacts?|\
         analyse[ds]?|catalogues?|programmes?|judgement",
        "use American spelling",
    ),
    phrase(
        "\\w*(optimi|normali|quanti|seriali|recogni|initiali|speciali|synchroni|organi|summari|minimi|maximi|\
         vectori|tokeni|parallelis|categori|utili|visuali|generali|reali|emphasi|locali|randomi|penali)s(e|es|ed|er|ers|ing|ation|ations)",
        "use American spelling: \"-ize\"",
    ),
];

/// Words that must not open a sentence, except a question.
pub const OPENERS: &[&str] = &["What", "Of", "As"];

/// More words make a sentence long.
pub const MAX_WORDS: usize = 30;

/// Descriptions of absence, which are often better as a statement of what happens.
pub const ABSENCE: Phrase = Phrase {
    pattern: "(is|are|was|were|has|have|had) no [a-z]+",
    unless: &[],
    advice: "say what happens, or write \"without …\", \"does not have a …\"",
};
/// Correct uses of the same words.
pub const ABSENCE_ALLOWED: &[&str] =
    &["longer", "more", "less", "larger", "smaller", "effect", "need", "way", "such", "change", "other"];

/// A preposition that is often replaced by a shorter one.
pub const AMONG: Phrase = phrase("among", "write \"between\", \"of\" or \"from\"");

/// Maximum numbers of places with [`ABSENCE`] and [`AMONG`], and of sentences with more than [`MAX_WORDS`] words. Lower them after a correction;
/// do not raise them.
pub const MAX_ABSENCES: usize = 5;
pub const MAX_AMONG: usize = 40;
pub const MAX_LONG_SENTENCES: usize = 120;

/// Places where a phrase is right: file, phrase, reason. An empty phrase allows everything in a file or folder.
pub const ALLOWED: &[(&str, &str, &str)] = &[
    ("docs/style.md", "", "the tables of phrases themselves"),
    ("docs/log/", "", "entries of the log keep their text"),
    ("docs/book/de/", "", "German"),
    ("README.de.md", "", "German"),
    ("tests/language", "", "this test"),
    ("crates/tensor/src/quant/", "dequantise", "a kernel's name"),
    ("crates/tensor/src/ops/decode_step/", "quantised", "a kernel's define"),
];
