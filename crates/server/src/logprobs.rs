//! Token probabilities in the formats of OpenAI's two interfaces.

use crate::piece::Token;
use netcl::llm::Tokenizer;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Strings of tokens.
#[derive(Clone)]
pub struct Words(pub Option<Arc<Tokenizer>>);

impl Words {
    fn bytes(&self, id: u32) -> Vec<u8> {
        let piece = self.0.as_ref().and_then(|tokenizer| tokenizer.piece(id).ok());
        piece.map(<[u8]>::to_vec).unwrap_or_default()
    }

    /// Writes bytes that are not UTF-8 as numbers, so that two tokens have different names.
    fn text(&self, id: u32) -> String {
        let bytes = self.bytes(id);
        match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => error.as_bytes().iter().map(|byte| format!("<0x{byte:02X}>")).collect(),
        }
    }

    fn entry(&self, id: u32, logprob: f32) -> Map<String, Value> {
        let mut entry = Map::new();
        entry.insert("token".into(), self.text(id).into());
        entry.insert("logprob".into(), finite(logprob).into());
        entry.insert("bytes".into(), self.bytes(id).into());
        entry
    }

    /// Returns `logprobs.content` for chats.
    pub fn of_chat(&self, tokens: &[Token]) -> Value {
        let one = |token: &Token| {
            let known = token.logprobs.as_ref()?;
            let top = known.top.iter().map(|(id, logprob)| Value::Object(self.entry(*id, *logprob)));
            let mut entry = self.entry(token.id, known.token);
            entry.insert("top_logprobs".into(), top.collect());
            Some(Value::Object(entry))
        };
        json!({ "content": tokens.iter().filter_map(one).collect::<Value>(), "refusal": null })
    }

    /// Returns `logprobs` for completions. `offset` is the position of the first token in the text, and afterwards the position after the last one.
    pub fn of_completion(&self, tokens: &[Token], offset: &mut usize) -> Value {
        let mut names = Vec::new();
        let mut values = Vec::new();
        let mut tops = Vec::new();
        let mut places = Vec::new();
        for token in tokens {
            let Some(known) = &token.logprobs else { continue };
            let text = self.text(token.id);
            let mut top: Map<String, Value> =
                known.top.iter().map(|(id, logprob)| (self.text(*id), finite(*logprob).into())).collect();
            // The chosen token is always in the list.
            top.entry(text.clone()).or_insert_with(|| finite(known.token).into());
            places.push(*offset);
            *offset += text.chars().count();
            names.push(text);
            values.push(finite(known.token));
            tops.push(Value::Object(top));
        }
        json!({ "tokens": names, "token_logprobs": values, "top_logprobs": tops, "text_offset": places })
    }
}

/// Converts to a finite number. JSON does not have infinity; OpenAI writes −9999 for nearly impossible tokens.
fn finite(logprob: f32) -> f64 {
    if logprob.is_finite() { f64::from(logprob) } else { -9999.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl::llm::engine::Logprobs;
    use netcl::llm::tokenizer::{TokenKind, Vocab};

    #[test]
    fn both_forms_name_tokens_and_bytes() {
        let tokens: Vec<String> = ["</s>", "<0xC3>", "ab", "é"].map(str::to_owned).to_vec();
        let kinds = vec![TokenKind::Control, TokenKind::Byte, TokenKind::Normal, TokenKind::Normal];
        let vocab = Vocab {
            model: "llama".into(),
            scores: vec![0.0; tokens.len()],
            tokens,
            kinds,
            eos: Some(0),
            unknown: Some(0),
            ..Vocab::default()
        };
        let words = Words(Some(Arc::new(Tokenizer::from_vocab(&vocab).unwrap())));
        let token = |id, logprob, top| Token { id, logprobs: Some(Logprobs { token: logprob, top }) };
        let all = [token(2, -0.5, vec![(3, -0.25), (2, -0.5)]), token(1, f32::NEG_INFINITY, vec![])];
        let chat = words.of_chat(&all);
        assert_eq!(chat["content"][0]["token"], "ab");
        assert_eq!(
            chat["content"][0]["top_logprobs"][0],
            json!({"token": "é", "logprob": -0.25, "bytes": [195, 169]})
        );
        assert_eq!(
            chat["content"][1],
            json!({"token": "<0xC3>", "logprob": -9999.0, "bytes": [195], "top_logprobs": []})
        );
        let mut offset = 3;
        let completion = words.of_completion(&all, &mut offset);
        assert_eq!(completion["text_offset"], json!([3, 5]));
        assert_eq!(completion["top_logprobs"][0], json!({"é": -0.25, "ab": -0.5}));
        assert_eq!((offset, completion["tokens"][1].as_str()), (11, Some("<0xC3>")));
    }
}
