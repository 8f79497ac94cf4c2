//! Answer formats of model families: reasoning and function calls.

/// Format of calls in answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// One `<tool_call>{"name": …, "arguments": {…}}</tool_call>` per call: Hermes, Qwen.
    Tagged,
    /// One `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>` per call: Qwen3-Coder.
    Xml,
    /// `[{"name": …, "arguments": {…}}, …]`, after the control token `[TOOL_CALLS]`: Mistral.
    List,
    /// One `[TOOL_CALLS]NAME[ARGS]{…}` per call: Mistral since 2025.
    Named,
    /// `{"name": …, "parameters": {…}}`, several in sequence: Llama 3.
    Objects,
    /// Messages in channels; those to `functions.NAME` are calls: gpt-oss.
    Channels,
}

impl Calls {
    /// Returns the format of a chat template; `None` if it does not support tools or uses an unsupported format.
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

/// Elements to parse in answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forms {
    /// Calls, if the template uses a supported format.
    pub calls: Option<Calls>,
    /// Whether the model writes every answer as messages in channels (gpt-oss), even without functions to call.
    pub channels: bool,
    /// Whether the model puts its reasoning between `<think>` and `</think>`.
    pub thinks: bool,
    /// Whether the prompt ends with `<think>`, so that the answer starts inside the reasoning.
    pub thinking: bool,
}

impl Forms {
    /// Returns true if names of control tokens are part of the parsed text.
    pub fn shows_controls(&self, tools: bool) -> bool {
        self.channels || tools && matches!(self.calls, Some(Calls::List | Calls::Named))
    }
}

/// Marks around reasoning.
pub const THINK: [&str; 2] = ["<think>", "</think>"];
/// Marks around calls, for [`Calls::Tagged`] and [`Calls::Xml`].
pub const CALL: [&str; 2] = ["<tool_call>", "</tool_call>"];
/// Mark before calls, for [`Calls::List`] and [`Calls::Named`].
pub const LIST: &str = "[TOOL_CALLS]";
/// Mark between a name and its arguments, for [`Calls::Named`].
pub const ARGS: &str = "[ARGS]";
/// Optional mark before calls, for [`Calls::Objects`].
pub const PYTHON: &str = "<|python_tag|>";
/// Marks of [`Calls::Channels`]: start a message, name its channel, start its text, declare the format of the text, end the message, call.
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
