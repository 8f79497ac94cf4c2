//! Messages in channels, as gpt-oss writes them: a head such as `<|channel|>commentary to=functions.f <|constrain|>json<|message|>`, its text, and a
//! mark that ends it.

use crate::forms::CHANNELS;

/// What a message is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// What the model thinks.
    Thought,
    /// Text for the reader.
    Text,
    /// Arguments of a function.
    Call(String),
}

/// Marks behind a message's text.
pub const ENDS: [&str; 5] = [CHANNELS[4], CHANNELS[5], "<|return|>", CHANNELS[0], CHANNELS[1]];

/// What the head says of its message.
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

/// Whether a text is the beginning of a message's head; nothing while it may still become one.
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
