//! Tokenizers keep nothing of the texts that they encode. A server encodes unique texts for its whole run time.

use super::super::{Specials, TokenKind, Tokenizer, Vocab, alphabet, files};
use serde_json::{Map, Value, json};

/// Returns the bytes of this process's memory in use.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    // In pages of at least 4096 bytes.
    Some(text.split(' ').nth(1)?.parse::<u64>().ok()? * 4096)
}

/// Byte-level BPE without merges, whose pre-tokenizer converts bytes to letters and does not split.
fn of_file() -> Tokenizer {
    let vocab: Map<String, Value> =
        (0..=255u8).map(|byte| (alphabet::letter(byte).to_string(), u32::from(byte).into())).collect();
    let bytes =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                   "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": [] },
    });
    Tokenizer::from_file(files::Tokenizer::from_json(&file.to_string(), None).unwrap()).unwrap()
}

/// The same from a GGUF file, split by lines.
fn of_vocab() -> Tokenizer {
    let letters = (0..=255u8).map(|byte| alphabet::letter(byte).to_string());
    let tokens: Vec<String> = letters.chain(["ab".to_owned()]).collect();
    let kinds = vec![TokenKind::Normal; tokens.len()];
    let merges = vec!["a b".to_owned()];
    let vocab =
        Vocab { model: "gpt2".into(), pre: Some("gpt-2".into()), tokens, kinds, merges, ..Vocab::default() };
    Tokenizer::from_vocab(&vocab).unwrap()
}

#[test]
fn texts_leave_nothing_behind() {
    for (name, tokenizer) in [("file", of_file()), ("vocabulary", of_vocab())] {
        let read = |n: u32| {
            // Each word has 250 letters and is different.
            let mut text = String::new();
            for at in 0..62 {
                let bits = n.wrapping_mul(2_654_435_761).rotate_left(at);
                text.extend((0..4).map(|k| char::from(b'c' + ((bits >> (5 * k)) & 15) as u8)));
            }
            assert_eq!(tokenizer.encode(&text, Specials::Plain).unwrap().len(), 248);
        };
        (0..200).for_each(read);
        let Some(before) = resident() else { return println!("skipped: no /proc/self/statm") };
        (200..9_000).for_each(read);
        let grown = resident().unwrap().saturating_sub(before);
        println!("{name}: {} KiB", grown >> 10);
        assert!(grown < 16 << 20, "{name}: grew by {} KiB", grown >> 10);
    }
}
