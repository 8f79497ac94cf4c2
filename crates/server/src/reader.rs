//! Reads answers: what a model thought, what it says, and the functions that it calls, each family's in its own form.
//!
//! The forms are told from the chat template, which writes earlier calls in them. Text streams as it comes: no more is held back than may still
//! become a mark, but for calls, which are given when they are complete. What looks like a call and is none stays text.

use crate::answer::Part;
use serde_json::Value;

/// How calls stand in answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, each: Hermes, Qwen.
    Tagged,
    /// `[{"name": …, "arguments": {…}}, …]`, behind the control token `[TOOL_CALLS]`: Mistral.
    List,
    /// `{"name": …, "parameters": {…}}`, several after each other: Llama 3.
    Objects,
}

impl Calls {
    /// As a chat template writes them; none where it knows no tools, or writes them in a form that is not read here.
    pub fn of_template(text: &str) -> Option<Self> {
        let has = |mark: &str| text.contains(mark);
        match () {
            () if has("<tool_call>") && !has("<function=") => Some(Self::Tagged),
            () if has("[TOOL_CALLS]") => Some(Self::List),
            () if has("<|python_tag|>") || has("\"parameters\": ") && has("tools") => Some(Self::Objects),
            () => None,
        }
    }
}

/// What is looked for in answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forms {
    /// Calls, where tools were given.
    pub calls: Option<Calls>,
    /// Whether the model thinks between `<think>` and `</think>`.
    pub thinks: bool,
    /// Whether the prompt ends with `<think>`, so that the answer is within.
    pub thinking: bool,
}

const THINK: [&str; 2] = ["<think>", "</think>"];
const CALL: [&str; 2] = ["<tool_call>", "</tool_call>"];
/// Names of control tokens before calls, in case the text shows them.
const BEFORE: [&str; 2] = ["[TOOL_CALLS]", "<|python_tag|>"];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Nothing but blanks was read.
    #[default]
    Begin,
    Thinking,
    Saying,
    /// Within a tagged call.
    Calling,
    /// All of it is calls, or text, which its end tells.
    Whole,
}

/// Reads one answer.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    forms: Forms,
    state: State,
    held: String,
    /// Whether blanks come that are no text: behind thoughts and calls.
    blanks: bool,
}

impl Reader {
    /// Looks for these.
    pub fn new(forms: Forms) -> Self {
        let state = if forms.thinking { State::Thinking } else { State::Begin };
        Self { forms, state, held: String::new(), blanks: false }
    }

    /// Takes more text of the answer.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        self.held += text;
        let mut parts = Vec::new();
        while self.advance(&mut parts) {}
        parts
    }

    /// What was held back, at the end.
    pub fn finish(&mut self) -> Vec<Part> {
        self.skip_blanks();
        let rest = std::mem::take(&mut self.held);
        let mut parts = Vec::new();
        match self.state {
            State::Thinking => push(&mut parts, Part::Reasoning, &rest),
            // An answer may end with the call's end left out, as a stop text.
            State::Calling => match calls(&rest) {
                Some(calls) => calls.into_iter().for_each(|call| parts.extend(call)),
                None => push(&mut parts, Part::Content, &format!("{}{rest}", CALL[0])),
            },
            State::Whole => match calls(&rest) {
                Some(calls) => calls.into_iter().for_each(|call| parts.extend(call)),
                None => push(&mut parts, Part::Content, &rest),
            },
            State::Begin | State::Saying => push(&mut parts, Part::Content, &rest),
        }
        parts
    }

    /// Reads on; whether there may be more to read in what is held.
    fn advance(&mut self, parts: &mut Vec<Part>) -> bool {
        match self.state {
            State::Begin => self.begin(),
            State::Thinking => {
                let Some(rest) = self.until(THINK[1], Part::Reasoning, parts) else { return false };
                (self.held, self.state, self.blanks) = (rest, State::Begin, true);
                self.forms.thinks = false;
                true
            }
            State::Saying => {
                if self.skip_blanks() {
                    return false;
                }
                if self.forms.calls != Some(Calls::Tagged) {
                    push(parts, Part::Content, &std::mem::take(&mut self.held));
                    return false;
                }
                let Some(rest) = self.until(CALL[0], Part::Content, parts) else { return false };
                (self.held, self.state) = (rest, State::Calling);
                true
            }
            State::Calling => {
                let Some((inside, rest)) = self.held.split_once(CALL[1]) else { return false };
                let found = calls(inside);
                self.blanks = found.is_some();
                match found {
                    Some(calls) => calls.into_iter().for_each(|call| parts.extend(call)),
                    None => push(parts, Part::Content, &format!("{}{inside}{}", CALL[0], CALL[1])),
                }
                (self.held, self.state) = (rest.to_owned(), State::Saying);
                true
            }
            State::Whole => false,
        }
    }

    /// Leaves blanks out that are no text; whether nothing else is there yet.
    fn skip_blanks(&mut self) -> bool {
        if self.blanks {
            self.held = self.held.trim_start().to_owned();
            self.blanks = self.held.is_empty();
        }
        self.blanks
    }

    /// What an answer begins with decides what it is.
    fn begin(&mut self) -> bool {
        if self.skip_blanks() {
            return false;
        }
        let text = self.held.trim_start();
        let may_begin = |mark: &str| mark.starts_with(text);
        if self.forms.thinks && text.starts_with(THINK[0]) {
            (self.held, self.state) = (text[THINK[0].len()..].to_owned(), State::Thinking);
            return true;
        }
        let opens = match self.forms.calls {
            Some(Calls::List) => Some('['),
            Some(Calls::Objects) => Some('{'),
            _ => None,
        };
        if opens
            .is_some_and(|open| text.starts_with(open) || BEFORE.iter().any(|mark| text.starts_with(mark)))
        {
            self.state = State::Whole;
            return false;
        }
        let undecided = self.forms.thinks && may_begin(THINK[0])
            || opens.is_some() && BEFORE.iter().any(|m| may_begin(m));
        if undecided {
            return false;
        }
        self.state = State::Saying;
        true
    }

    /// Gives what is held up to `mark` and returns what follows it; without the mark, gives what cannot be its begin.
    fn until(&mut self, mark: &str, part: fn(String) -> Part, parts: &mut Vec<Part>) -> Option<String> {
        if let Some((before, after)) = self.held.split_once(mark) {
            push(parts, part, before);
            return Some(after.to_owned());
        }
        let longest = (1..mark.len()).rev().find(|n| self.held.ends_with(&mark[..*n])).unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - longest);
        push(parts, part, &std::mem::replace(&mut self.held, kept));
        None
    }
}

fn push(parts: &mut Vec<Part>, part: fn(String) -> Part, text: &str) {
    if !text.is_empty() {
        parts.push(part(text.to_owned()));
    }
}

/// The calls of a text that is nothing else.
fn calls(text: &str) -> Option<Vec<[Part; 3]>> {
    let text = text.trim();
    let text = BEFORE.iter().find_map(|mark| text.strip_prefix(mark)).unwrap_or(text).trim_start();
    let mut found = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        match values.next()?.ok()? {
            Value::Array(list) => {
                found.extend(list.iter().map(call).collect::<Option<Vec<_>>>()?);
            }
            value => found.push(call(&value)?),
        }
        let at = values.byte_offset();
        rest = rest[at..].trim_start_matches(|c: char| c == ';' || c.is_whitespace());
    }
    Some(found).filter(|found| !found.is_empty())
}

fn call(value: &Value) -> Option<[Part; 3]> {
    let function = value.get("function").filter(|function| function.is_object()).unwrap_or(value);
    let name = function["name"].as_str()?.to_owned();
    let arguments = function.get("arguments").or_else(|| function.get("parameters"))?;
    let arguments = match arguments {
        Value::Object(_) => arguments.to_string(),
        // Some models write the object as a text.
        Value::String(text) => serde_json::from_str::<Value>(text).ok().filter(Value::is_object)?.to_string(),
        _ => return None,
    };
    Some([Part::CallBegin { name }, Part::CallArguments(arguments), Part::CallEnd])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Answer;

    fn read(forms: Forms, pieces: &[&str]) -> (String, String, Vec<(String, String)>) {
        let (mut reader, mut answer) = (Reader::new(forms), Answer::default());
        for piece in pieces {
            reader.push(piece).iter().for_each(|part| answer.add(part));
        }
        reader.finish().iter().for_each(|part| answer.add(part));
        let calls = answer.calls.into_iter().map(|call| (call.name, call.arguments)).collect();
        (answer.content, answer.reasoning, calls)
    }

    fn of(calls: Option<Calls>, thinks: bool, thinking: bool) -> Forms {
        Forms { calls, thinks, thinking }
    }

    /// Each text gives the same whole, in two pieces at any border, and character by character.
    #[test]
    fn answers_are_read_alike_in_any_pieces() {
        let f = |x: &str| ("f".to_owned(), format!("{{\"x\":{x}}}"));
        let tagged = of(Some(Calls::Tagged), true, false);
        let cases = [
            (Forms::default(), "plain <think> {\"name\"", "plain <think> {\"name\"", "", vec![]),
            (of(None, true, false), "\n<think>a < b</think>\n\nyes", "yes", "a < b", vec![]),
            (of(None, true, true), "so\n</think>\n\nyes </think>", "yes </think>", "so\n", vec![]),
            (of(None, true, false), "<thin> air", "<thin> air", "", vec![]),
            (of(None, true, false), "<think>never ends", "", "never ends", vec![]),
            (
                tagged,
                "Look: <tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>\n<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"x\\\": 2}\"}</tool_call>",
                "Look: ",
                "",
                vec![f("1"), f("2")],
            ),
            (
                tagged,
                "<think>é</think><tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}",
                "",
                "é",
                vec![f("1")],
            ),
            (tagged, "<tool_call>{broken}</tool_call> on", "<tool_call>{broken}</tool_call> on", "", vec![]),
            (tagged, "1 <tool", "1 <tool", "", vec![]),
            (
                of(Some(Calls::Objects), false, false),
                "{\"name\": \"f\", \"parameters\": {\"x\": 1}}; {\"name\": \"f\", \"parameters\": {\"x\": 2}}",
                "",
                "",
                vec![f("1"), f("2")],
            ),
            (
                of(Some(Calls::Objects), false, false),
                "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"x\": 1}}",
                "",
                "",
                vec![f("1")],
            ),
            (of(Some(Calls::Objects), false, false), "{\"a\": 1}", "{\"a\": 1}", "", vec![]),
            (of(Some(Calls::Objects), false, false), "It is {1}", "It is {1}", "", vec![]),
            (
                of(Some(Calls::List), false, false),
                "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"x\": 1}}]",
                "",
                "",
                vec![f("1")],
            ),
            (of(Some(Calls::List), false, false), "[1] says", "[1] says", "", vec![]),
        ];
        for (forms, text, content, reasoning, calls) in cases {
            let expected = (content.to_owned(), reasoning.to_owned(), calls);
            let letters: Vec<String> = text.chars().map(String::from).collect();
            let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
            assert_eq!(read(forms, &letters), expected, "{text}");
            for (at, _) in text.char_indices() {
                let (a, b) = text.split_at(at);
                assert_eq!(read(forms, &[a, b]), expected, "{text} at {at}");
            }
        }
    }

    #[test]
    fn text_is_not_held_back_longer_than_it_may_be_a_mark() {
        let mut reader = Reader::new(of(Some(Calls::Tagged), true, false));
        assert_eq!(reader.push("a <to"), [Part::Content("a ".into())]);
        assert_eq!(reader.push("ast"), [Part::Content("<toast".into())]);
        assert_eq!(reader.push(" on"), [Part::Content(" on".into())]);
    }

    #[test]
    fn forms_are_told_from_templates() {
        assert_eq!(Calls::of_template("{% if tools %}<tool_call>{\"name\": "), Some(Calls::Tagged));
        assert_eq!(Calls::of_template("<tool_call><function=x>"), None);
        assert_eq!(Calls::of_template("[TOOL_CALLS]"), Some(Calls::List));
        assert_eq!(
            Calls::of_template("tools {\"name\": function name, \"parameters\": dictionary"),
            Some(Calls::Objects)
        );
        assert_eq!(Calls::of_template("{{ messages }}"), None);
    }
}
