//! Parts of an answer: content, reasoning and calls of tools.

/// A part of an answer, as its text is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text for the reader.
    Content(String),
    /// What the model thought before.
    Reasoning(String),
    /// A call of a function begins.
    CallBegin {
        /// The function's name.
        name: String,
    },
    /// More of the call's arguments, which are JSON.
    CallArguments(String),
    /// The call is complete.
    CallEnd,
}

/// A call of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Names it in what follows.
    pub id: String,
    /// The function.
    pub name: String,
    /// JSON.
    pub arguments: String,
}

/// An answer as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Text for the reader.
    pub content: String,
    /// What the model thought before.
    pub reasoning: String,
    /// Calls in their order.
    pub calls: Vec<Call>,
}

impl Answer {
    /// Adds a part.
    pub fn add(&mut self, part: &Part) {
        match part {
            Part::Content(text) => self.content.push_str(text),
            Part::Reasoning(text) => self.reasoning.push_str(text),
            Part::CallBegin { name } => {
                let id = crate::names::name("call_");
                self.calls.push(Call { id, name: name.clone(), arguments: String::new() });
            }
            Part::CallArguments(text) => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments.push_str(text);
                }
            }
            Part::CallEnd => {}
        }
    }
}
