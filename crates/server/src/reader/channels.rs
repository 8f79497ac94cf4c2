//! Messages in channels, the format of gpt-oss: a head such as `<|channel|>commentary to=functions.f <|constrain|>json<|message|>`, the text, and an
//! end mark.

use crate::forms::CHANNELS;

/// Kind of message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Reasoning.
    Thought,
    /// Text for the user.
    Text,
    /// Arguments of a function call.
    Call(String),
}

/// Marks that can follow a message's text.
pub const ENDS: [&str; 5] = [CHANNELS[4], CHANNELS[5], "<|return|>", CHANNELS[0], CHANNELS[1]];

/// Returns the kind of message that a head announces.
pub fn message(head: &str) -> Message {
    let recipient = head.split_once("to=").map(|(_, rest)| {
        let end = rest.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(rest.len());
        &rest[..end]
    });
    let channel = head.split_once(CHANNELS[1]).map_or("final", |(_, rest)| rest.trim_start());
    match recipient {
        Some(recipient) if !recipient.is_empty() && recipient != "user" => {
            Message::Call(recipient.strip_prefix("functions.").unwrap_or(recipient).to_owned())
        }
        _ if channel.starts_with("analysis") => Message::Thought,
        _ => Message::Text,
    }
}

/// Returns true if a text is the start of a message's head; `None` while it may still become one.
pub fn is_head(text: &str) -> Option<bool> {
    let marks = [CHANNELS[0], CHANNELS[1], CHANNELS[2], "to="];
    match marks.iter().any(|mark| text.starts_with(mark)) {
        true => Some(true),
        false if marks.iter().any(|mark| mark.starts_with(text)) => None,
        false => Some(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_say_what_messages_are() {
        for (head, expected) in [
            ("<|channel|>analysis", Message::Thought),
            ("<|channel|>final", Message::Text),
            ("<|channel|>commentary", Message::Text),
            ("<|channel|>commentary to=functions.get_x <|constrain|>json", Message::Call("get_x".into())),
            (" to=functions.f<|channel|>commentary json", Message::Call("f".into())),
            ("<|start|>assistant<|channel|>analysis", Message::Thought),
            ("", Message::Text),
        ] {
            assert_eq!(message(head), expected, "{head}");
        }
    }
}
