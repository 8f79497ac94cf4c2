//! Parses answers of all model families: reasoning, text and function calls.
//!
//! Text is streamed. Only text that may still become a mark is held back. A call's arguments are streamed as soon as its name is known. Text that
//! looked like a call up to that point but is not one stays text.

mod channels;
mod object;
mod python;
mod xml;

use crate::answer::AnswerPart;
use crate::forms::{ARGS, CALL, CHANNELS, Calls, Forms, LIST, PYTHON, THINK};
use crate::tools::Tools;
use channels::Message;
use object::{Object, Progress, Strings};
use std::sync::Arc;
use xml::Xml;
pub use xml::{FUNCTION, PARAMETER};

/// Maximum length of a function name.
const LONGEST_NAME: usize = 256;

#[derive(Clone, Debug, Default)]
enum State {
    /// Only whitespace has been read.
    #[default]
    Begin,
    Thinking,
    Saying,
    /// Inside a call that is an object, with the text before it in case it is not a call.
    Object(Object, String),
    /// After such a call, where another one may follow.
    Between,
    Xml(Xml, String),
    /// Inside the name of a call.
    Name,
    /// Inside the head of a message.
    Head,
    /// Inside the text of a message.
    Body(Message),
}

/// Parser of one answer.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    forms: Forms,
    tools: Option<Arc<Tools>>,
    state: State,
    held: String,
    /// Whether following whitespace is not text: after reasoning and calls.
    blanks: bool,
    /// String state in the arguments of the last call.
    strings: Strings,
}

impl Reader {
    /// Returns a parser. It looks for calls if functions were given.
    pub fn new(forms: Forms, tools: Option<Arc<Tools>>) -> Self {
        let forms = Forms { calls: forms.calls.filter(|_| tools.is_some()), ..forms };
        let state = if forms.thinking { State::Thinking } else { State::Begin };
        Self { forms, tools, state, held: String::new(), blanks: false, strings: Strings::default() }
    }

    /// Adds more text of the answer.
    pub fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        self.held += text;
        let mut parts = Vec::new();
        while self.advance(&mut parts) {}
        self.valid(parts)
    }

    /// Escapes control characters inside strings of arguments: models write them raw, which JSON does not allow.
    fn valid(&mut self, mut parts: Vec<AnswerPart>) -> Vec<AnswerPart> {
        for part in &mut parts {
            match part {
                AnswerPart::CallBegin { .. } => self.strings = Strings::default(),
                AnswerPart::CallArguments(text) => *text = self.strings.escaped(text),
                _ => {}
            }
        }
        parts
    }

    /// Returns the text that was held back, at the end.
    pub fn finish(&mut self) -> Vec<AnswerPart> {
        self.skip_blanks();
        let rest = std::mem::take(&mut self.held);
        let mut parts = Vec::new();
        match std::mem::take(&mut self.state) {
            State::Thinking | State::Body(Message::Thought) => push(&mut parts, AnswerPart::Reasoning, &rest),
            State::Object(object, _) if object.has_begun() => parts.push(AnswerPart::CallEnd),
            State::Xml(xml, _) if xml.has_ended() => {}
            State::Xml(xml, _) if xml.has_begun() => parts.push(AnswerPart::CallEnd),
            State::Object(_, before) | State::Xml(_, before) => {
                push(&mut parts, AnswerPart::Content, &format!("{before}{rest}"));
            }
            State::Body(Message::Call(_)) => {
                push(&mut parts, AnswerPart::CallArguments, &rest);
                parts.push(AnswerPart::CallEnd);
            }
            State::Name => push(&mut parts, AnswerPart::Content, &format!("{LIST}{rest}")),
            State::Between | State::Head => {}
            State::Begin | State::Saying | State::Body(Message::Text) => {
                push(&mut parts, AnswerPart::Content, &rest);
            }
        }
        self.valid(parts)
    }

    /// Parses more. Returns true if the held text may contain more to parse.
    fn advance(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        match std::mem::take(&mut self.state) {
            State::Begin => self.begin(parts),
            State::Thinking => {
                let Some((_, rest)) = self.until(&THINK[1..], AnswerPart::Reasoning, parts) else {
                    return self.stay(State::Thinking);
                };
                (self.held, self.blanks, self.forms.thinks) = (rest, true, false);
                self.go(State::Begin)
            }
            State::Saying => self.say(parts),
            State::Object(object, before) => self.object(object, before, parts),
            State::Between => self.between(),
            State::Xml(mut xml, before) => match xml.take(&mut self.held, self.tools.as_deref(), parts) {
                Progress::More => self.stay(State::Xml(xml, before)),
                Progress::Done => self.after_call(State::Saying),
                Progress::Not => self.no_call(&before, parts),
            },
            State::Name => self.name(parts),
            State::Head => self.head(),
            State::Body(message) => self.body(message, parts),
        }
    }

    fn go(&mut self, state: State) -> bool {
        self.state = state;
        true
    }
    fn stay(&mut self, state: State) -> bool {
        self.state = state;
        false
    }
    fn after_call(&mut self, state: State) -> bool {
        self.blanks = true;
        self.go(state)
    }
    /// Treats text that looked like a call, and the mark before it, as text.
    fn no_call(&mut self, before: &str, parts: &mut Vec<AnswerPart>) -> bool {
        push(parts, AnswerPart::Content, before);
        self.go(State::Saying)
    }

    fn object(&mut self, mut object: Object, before: String, parts: &mut Vec<AnswerPart>) -> bool {
        match object.take(&mut self.held, parts) {
            Progress::More => self.stay(State::Object(object, before)),
            Progress::Not => self.no_call(&before, parts),
            Progress::Done => self.after_call(State::Between),
        }
    }

    /// Parses after a call: its end mark, further calls, or text.
    fn between(&mut self) -> bool {
        let skipped: &[char] = match self.forms.calls {
            Some(Calls::List) => &[' ', '\n', '\t', '\r', ','],
            Some(Calls::Objects) => &[' ', '\n', '\t', '\r', ';'],
            _ => &[' ', '\n', '\t', '\r'],
        };
        let text = self.held.trim_start_matches(skipped);
        let end = match self.forms.calls {
            Some(Calls::Tagged) => CALL[1],
            Some(Calls::List) => "]",
            _ => "",
        };
        self.held = text.to_owned();
        if self.held.is_empty() || self.held.len() < end.len() && end.starts_with(self.held.as_str()) {
            return self.stay(State::Between);
        }
        if let Some(rest) = self.held.strip_prefix(end).filter(|_| !end.is_empty()) {
            self.held = rest.to_owned();
            return self.after_call(State::Saying);
        }
        match self.forms.calls {
            Some(Calls::List | Calls::Objects) if self.held.starts_with('{') => {
                self.go(State::Object(Object::new(), String::new()))
            }
            _ => self.after_call(State::Saying),
        }
    }

    /// Skips whitespace that is not text. Returns true if nothing else has arrived yet.
    fn skip_blanks(&mut self) -> bool {
        if self.blanks {
            self.held = self.held.trim_start().to_owned();
            self.blanks = self.held.is_empty();
        }
        self.blanks
    }

    /// Determines the kind of content from the start of an answer.
    fn begin(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        if self.skip_blanks() {
            return self.stay(State::Begin);
        }
        let text = self.held.trim_start();
        let may_begin = |mark: &str| mark.starts_with(text);
        if self.forms.channels {
            return match channels::is_head(text) {
                None => self.stay(State::Begin),
                Some(true) => self.go(State::Head),
                Some(false) => self.go(State::Saying),
            };
        }
        if self.forms.thinks && text.starts_with(THINK[0]) {
            self.held = text[THINK[0].len()..].to_owned();
            return self.go(State::Thinking);
        }
        let objects = self.forms.calls == Some(Calls::Objects);
        if objects && (text.starts_with('{') || text.starts_with(PYTHON)) {
            let at = self.held.len() - text.strip_prefix(PYTHON).unwrap_or(text).len();
            let rest = self.held.split_off(at);
            let before = std::mem::replace(&mut self.held, rest);
            return self.object(Object::new(), before, parts);
        }
        if self.forms.thinks && may_begin(THINK[0]) || objects && may_begin(PYTHON) {
            return self.stay(State::Begin);
        }
        self.go(State::Saying)
    }

    /// Passes text up to the next call.
    fn say(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        if self.skip_blanks() {
            return self.stay(State::Saying);
        }
        let marks: &[&str] = match self.forms.calls {
            Some(Calls::Tagged) => &CALL[..1],
            Some(Calls::Xml) => &[CALL[0], FUNCTION[0]],
            Some(Calls::List | Calls::Named) => &[LIST],
            _ => &[],
        };
        if marks.is_empty() {
            push(parts, AnswerPart::Content, &std::mem::take(&mut self.held));
            return self.stay(State::Saying);
        }
        let Some((mark, rest)) = self.until(marks, AnswerPart::Content, parts) else {
            return self.stay(State::Saying);
        };
        self.held = rest;
        match self.forms.calls {
            Some(Calls::Xml) if mark == FUNCTION[0] => {
                self.held.insert_str(0, mark);
                self.go(State::Xml(Xml::new(), String::new()))
            }
            Some(Calls::Xml) => self.go(State::Xml(Xml::new(), mark.to_owned())),
            Some(Calls::Named) => self.go(State::Name),
            Some(Calls::List) => self.list(parts),
            _ => self.go(State::Object(Object::new(), mark.to_owned())),
        }
    }

    /// Parses after the mark of a list.
    fn list(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        let text = self.held.trim_start();
        if text.is_empty() {
            // Put the mark back and wait for more text.
            self.held.insert_str(0, LIST);
            return self.stay(State::Saying);
        }
        match text.strip_prefix('[') {
            Some(rest) => {
                let at = self.held.len() - rest.len();
                let rest = self.held.split_off(at);
                let before = format!("{LIST}{}", std::mem::replace(&mut self.held, rest));
                self.object(Object::new(), before, parts)
            }
            None => self.no_call(LIST, parts),
        }
    }

    /// Parses a name that precedes its arguments.
    fn name(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        let Some((name, rest)) = self.held.split_once(ARGS) else {
            let begins_with_name = self.held.trim_start().find(char::is_whitespace).is_none();
            return match self.held.len() <= LONGEST_NAME && begins_with_name {
                true => self.stay(State::Name),
                false => self.no_call(LIST, parts),
            };
        };
        // An id may be in between.
        let name = name.split('[').next().unwrap_or_default().trim().to_owned();
        self.held = rest.to_owned();
        parts.push(AnswerPart::CallBegin { name });
        self.go(State::Object(Object::arguments(), String::new()))
    }

    /// Parses up to a message's text.
    fn head(&mut self) -> bool {
        let Some((head, rest)) = self.held.split_once(CHANNELS[2]) else { return self.stay(State::Head) };
        let message = channels::message(head);
        self.held = rest.to_owned();
        self.go(State::Body(message))
    }

    fn body(&mut self, message: Message, parts: &mut Vec<AnswerPart>) -> bool {
        let part = match &message {
            Message::Thought => AnswerPart::Reasoning,
            Message::Text => AnswerPart::Content,
            Message::Call(_) => AnswerPart::CallArguments,
        };
        if let Message::Call(name) = &message
            && !name.is_empty()
        {
            parts.push(AnswerPart::CallBegin { name: name.clone() });
        }
        // The name was already sent.
        let message = if let Message::Call(_) = message { Message::Call(String::new()) } else { message };
        let Some((mark, rest)) = self.until(&channels::ENDS, part, parts) else {
            return self.stay(State::Body(message));
        };
        self.held = rest;
        if mark == CHANNELS[1] {
            self.held.insert_str(0, mark);
        }
        if let Message::Call(_) = message {
            parts.push(AnswerPart::CallEnd);
        }
        self.go(State::Head)
    }

    /// Passes the held text up to the first of `marks`, and returns that mark and the following text. Without a mark, passes the text that cannot be
    /// the start of one.
    fn until<'m>(
        &mut self,
        marks: &[&'m str],
        part: fn(String) -> AnswerPart,
        parts: &mut Vec<AnswerPart>,
    ) -> Option<(&'m str, String)> {
        let found = marks.iter().filter_map(|mark| Some((self.held.find(mark)?, *mark)));
        if let Some((at, mark)) = found.min_by_key(|(at, _)| *at) {
            push(parts, part, &self.held[..at]);
            return Some((mark, self.held[at + mark.len()..].to_owned()));
        }
        let begun =
            |mark: &&str| (1..mark.len()).rev().find(|n| self.held.ends_with(&mark[..*n])).unwrap_or(0);
        let longest = marks.iter().map(begun).max().unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - longest);
        push(parts, part, &std::mem::replace(&mut self.held, kept));
        None
    }
}

fn push(parts: &mut Vec<AnswerPart>, part: fn(String) -> AnswerPart, text: &str) {
    if !text.is_empty() {
        parts.push(part(text.to_owned()));
    }
}

#[cfg(test)]
mod tests;
