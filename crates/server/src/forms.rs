//! The forms of answers that model families have: thoughts, and calls of functions.

/// How calls stand in answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, each: Hermes, Qwen.
    Tagged,
    /// `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`, each: Qwen3-Coder.
    Xml,
    /// `[{"name": …, "arguments": {…}}, …]`, behind the control token `[TOOL_CALLS]`: Mistral.
    List,
    /// `[TOOL_CALLS]NAME[ARGS]{…}`, each: Mistral since 2025.
    Named,
    /// `{"name": …, "parameters": {…}}`, several after each other: Llama 3.
    Objects,
    /// Messages in channels, those to `functions.NAME` being calls: gpt-oss.
    Channels,
}

impl Calls {
    /// As a chat template writes them; none where it knows no tools, or writes them in a form that is not read here.
    pub fn of_template(text: &str) -> Option<Self> {
        let has = |mark: &str| text.contains(mark);
        match () {
            () if has("<|channel|>") && has("functions.") => Some(Self::Channels),
            () if has("<tool_call>") && has("<function=") => has("<parameter=").then_some(Self::Xml),
            () if has("<tool_call>") => Some(Self::Tagged),
            () if has("[TOOL_CALLS]") && has("[ARGS]") => Some(Self::Named),
            () if has("[TOOL_CALLS]") => Some(Self::List),
            () if has("<|python_tag|>") || has("\"parameters\": ") && has("tools") => Some(Self::Objects),
            () => None,
        }
    }
}

/// What is looked for in answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forms {
    /// Calls, if the template writes them in a form that is read here.
    pub calls: Option<Calls>,
    /// Whether all of an answer is messages in channels, also where no function can be called.
    pub channels: bool,
    /// Whether the model thinks between `<think>` and `</think>`.
    pub thinks: bool,
    /// Whether the prompt ends with `<think>`, so that the answer is within.
    pub thinking: bool,
}

impl Forms {
    /// Whether names of control tokens are part of what is read.
    pub fn shows_controls(&self, tools: bool) -> bool {
        self.channels || tools && matches!(self.calls, Some(Calls::List | Calls::Named))
    }
}

/// Around what a model thinks.
pub const THINK: [&str; 2] = ["<think>", "</think>"];
/// Around calls, of [`Calls::Tagged`] and [`Calls::Xml`].
pub const CALL: [&str; 2] = ["<tool_call>", "</tool_call>"];
/// Before calls, of [`Calls::List`] and [`Calls::Named`].
pub const LIST: &str = "[TOOL_CALLS]";
/// Between a name and its arguments, of [`Calls::Named`].
pub const ARGS: &str = "[ARGS]";
/// Before calls, of [`Calls::Objects`], where the model writes it.
pub const PYTHON: &str = "<|python_tag|>";
/// Of [`Calls::Channels`]: begins a message, names its channel, begins its text, says what form that has, ends it, calls.
pub const CHANNELS: [&str; 6] =
    ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_told_from_templates() {
        for (text, expected) in [
            ("{% if tools %}<tool_call>{\"name\": ", Some(Calls::Tagged)),
            ("<tool_call><function=x><parameter=y>", Some(Calls::Xml)),
            ("<tool_call><function=x>", None),
            ("[TOOL_CALLS]", Some(Calls::List)),
            ("[TOOL_CALLS]{{ name }}[ARGS]", Some(Calls::Named)),
            ("tools {\"name\": function name, \"parameters\": dictionary", Some(Calls::Objects)),
            ("<|channel|>commentary to=functions.", Some(Calls::Channels)),
            ("{{ messages }}", None),
        ] {
            assert_eq!(Calls::of_template(text), expected, "{text}");
        }
    }
}
