//! Tokens that end a text.

use super::vocab::Vocab;
use serde_json::Value;

/// Names of tokens that end a turn or a text, for files that do not declare them.
const ENDS: [&str; 23] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|eot|>",
];

/// Returns the end ids of a GGUF vocabulary: those it names, and control tokens by their names.
///
/// Two families use a name of the list differently. If `<|return|>` or `<|flush|>` and `<|call|>` end a text, `<|end|>` only ends a part of it. If
/// `<|tool_response>` exists, `</s>` is text.
pub(super) fn of_vocab(vocab: &Vocab) -> Vec<u32> {
    let named = |names: &[&str]| {
        vocab
            .tokens
            .iter()
            .enumerate()
            .any(|(id, token)| names.contains(&&**token) && vocab.kind(id).is_special())
    };
    let parts = named(&["<|return|>", "<|flush|>"]) && named(&["<|call|>", "<|calls|>"]);
    let responds = named(&["<|tool_response>"]);
    let by_name = vocab.tokens.iter().enumerate().filter(|(id, token)| {
        vocab.kind(*id).is_special()
            && ENDS.contains(&&***token)
            && !(parts && *token == "<|end|>")
            && !(responds && *token == "</s>")
    });
    let ids = by_name.map(|(id, _)| id as u32);
    sorted(ids.chain([vocab.eos, vocab.eot, vocab.eom].into_iter().flatten()).collect())
}

/// Returns the ids of `eos_token_id` in a `config.json` or `generation_config.json`: a number or a list.
pub(crate) fn of_config(config: &Value) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match &config["eos_token_id"] {
        Value::Array(ids) => ids.iter().filter_map(id).collect(),
        one => id(one).into_iter().collect(),
    }
}

/// Without repeats.
pub(super) fn sorted(mut ids: Vec<u32>) -> Vec<u32> {
    ids.sort_unstable();
    ids.dedup();
    ids
}
