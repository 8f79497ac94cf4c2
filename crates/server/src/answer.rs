//! Parts of an answer: content, reasoning and tool calls.

/// A part of an answer, produced while its text is parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPart {
    /// Text for the user.
    Content(String),
    /// Reasoning text that precedes the answer.
    Reasoning(String),
    /// Start of a function call.
    CallBegin {
        /// The function's name.
        name: String,
    },
    /// The next part of the call's JSON arguments.
    CallArguments(String),
    /// The call is complete.
    CallEnd,
}

/// A function call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Id of the call, for later references.
    pub id: String,
    /// The function.
    pub name: String,
    /// Arguments as JSON.
    pub arguments: String,
}

/// A complete answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Text for the user.
    pub content: String,
    /// Reasoning text that precedes the answer.
    pub reasoning: String,
    /// Calls in order.
    pub calls: Vec<Call>,
}

impl Answer {
    /// Adds a part.
    pub fn add(&mut self, part: &AnswerPart) {
        match part {
            AnswerPart::Content(text) => self.content.push_str(text),
            AnswerPart::Reasoning(text) => self.reasoning.push_str(text),
            AnswerPart::CallBegin { name } => {
                let id = crate::names::name("call_");
                self.calls.push(Call { id, name: name.clone(), arguments: String::new() });
            }
            AnswerPart::CallArguments(text) => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments.push_str(text);
                }
            }
            AnswerPart::CallEnd => {}
        }
    }
}
