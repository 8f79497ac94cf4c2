use super::*;
use netcl_device::draw::Draw;
use serde_json::json;
use tokenizers::Tokenizer;

#[test]
fn pieces_are_the_text_and_end_at_lone_line_breaks() {
    fn of(text: &str) -> Vec<&str> {
        Cuts::Words.pieces(text).collect()
    }
    let text = "ein Wort äöü\n\n  und\nmehr \nnoch\n".repeat(20_000);
    let chunks = of(&text);
    assert!(chunks.len() > 5 && chunks.iter().all(|c| c.len() < CHUNK_BYTES + 100));
    assert_eq!(chunks.concat(), text);
    for chunk in &chunks[..chunks.len() - 1] {
        assert!(chunk.ends_with("und\n") || chunk.ends_with("noch\n"), "{:?}", &chunk[chunk.len() - 9..]);
    }
    assert_eq!(of("").len(), 0);
    assert_eq!(of(&" \n".repeat(100_000)).len(), 1);
    assert_eq!(of(&"x\n/".repeat(100_000)).len(), 1);
    let line = "one two  three ".repeat(40_000);
    let words = of(&line);
    assert!(words.len() > 3 && words.concat() == line);
    assert!(
        words[1..].iter().all(|w| w.starts_with(" two") || w.starts_with(" one")),
        "{:?}",
        &words[1][..9]
    );
}

/// Random text of words, numbers, punctuation, white space and several scripts, different for each seed.
fn text(seed: u64, bytes: usize) -> String {
    const PARTS: [&str; 30] = [
        " ", " ", " ", " ", " ", "\n", "\n", "  ", "\t", "\r\n", "\n\n", "\u{a0}", "the", "then", "Dog's",
        "x", "42", "3141592", "don't", ",", ".", "...", "(", "/", "//", "ünï", "日本", "\u{301}", "▁", "👍🏽",
    ];
    let mut draw = Draw::new(seed);
    let mut out = String::new();
    while out.len() < bytes {
        out += *draw.pick::<&str>(&PARTS);
    }
    out
}

/// Checks that the ids of pieces, cut wherever allowed, are those of the whole text; returns the number of pieces.
fn agrees(json: &serde_json::Value, text: &str) -> usize {
    let inner = Tokenizer::from_bytes(json.to_string()).unwrap();
    let ids = |text: &str| inner.encode_fast(text, false).unwrap().get_ids().to_vec();
    let cuts = Cuts::of(json);
    let (mut rest, mut pieces) = (text, Vec::new());
    // Cut at the first line break or space after the first characters.
    while let Some(cut) = cuts.find(rest, 1, 4) {
        pieces.push(&rest[..cut.end]);
        rest = &rest[cut.next..];
    }
    pieces.push(rest);
    let each: Vec<u32> = pieces.iter().flat_map(|piece| ids(piece)).collect();
    let whole = ids(text);
    let differs = each.iter().zip(&whole).position(|(a, b)| a != b);
    assert!(each == whole, "{cuts:?}: {} and {} ids, different from {differs:?} on", each.len(), whole.len());
    pieces.len()
}

/// A BPE model with merges of all adjacent pairs in the words of `corpus`, up to the vocabulary size.
fn bpe(corpus: &str, merges: usize, byte_level: bool) -> serde_json::Value {
    let mut vocab: Vec<String> = Vec::new();
    if byte_level {
        vocab.extend(
            tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet().iter().map(char::to_string),
        );
        vocab.sort();
    } else {
        vocab.push("<unk>".into());
        vocab.extend((0..=255u8).map(|b| format!("<0x{b:02X}>")));
        vocab.extend(('!'..='~').chain("▁ünï,.日".chars()).map(String::from));
        vocab.sort();
        vocab.dedup();
    }
    let mut pairs: Vec<[String; 2]> = Vec::new();
    for word in corpus.split(' ') {
        let mut left = String::new();
        for c in word.chars() {
            let right = c.to_string();
            if !left.is_empty() && !vocab.contains(&(left.clone() + &right)) && pairs.len() < merges {
                vocab.push(left.clone() + &right);
                pairs.push([left.clone(), right.clone()]);
            }
            left += &right;
        }
    }
    let ids: serde_json::Map<_, _> =
        vocab.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
    let unk = if byte_level { json!(null) } else { json!("<unk>") };
    json!({ "type": "BPE", "vocab": ids, "merges": pairs, "byte_fallback": !byte_level, "fuse_unk": true, "unk_token": unk })
}

#[test]
fn patterns_of_common_models_are_cut_where_the_library_gives_the_same_ids() {
    let gpt4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let qwen = gpt4.replace("{1,3}", "");
    let gpt4o = [
        ALTERNATIVES[24],
        ALTERNATIVES[25],
        r"\p{N}{1,3}",
        ALTERNATIVES[26],
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
    .join("|");
    let split = |pattern: &str| json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
    let bytes = |regex: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex });
    let sequence = |parts: &[serde_json::Value]| json!({ "type": "Sequence", "pretokenizers": parts });
    let digits = json!({ "type": "Digits", "individual_digits": true });
    let kinds = [
        (json!(null), bytes(true)),
        (json!({ "type": "NFC" }), sequence(&[split(&qwen), bytes(false)])),
        (json!(null), sequence(&[split(gpt4), bytes(false)])),
        (json!(null), sequence(&[split(&gpt4o), bytes(false)])),
        (json!(null), sequence(&[digits.clone(), bytes(true)])),
    ];
    let corpus = "then theĠ Ġthen Ġthe Ġdog ,Ċ ĊĊ Ċthe ...Ċ ...Ċ/ Ċ/ //Ċ 314 159 Ġ( ĠĠĠ ĉthe";
    for (number, (normalizer, pre)) in kinds.into_iter().enumerate() {
        let json = json!({ "version": "1.0", "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": pre, "model": bpe(corpus, 99, true) });
        assert!(matches!(Cuts::of(&json), Cuts::Words), "{number}");
        for seed in 1..6 {
            assert!(agrees(&json, &text(seed, 40_000)) > 300, "{number}");
        }
    }
    // A pre-tokenizer that splits nothing at spaces, or is unknown, allows no cuts.
    for (normalizer, pre) in [
        (json!(null), bytes(false)),
        (json!(null), sequence(&[split(r"\p{N}{1,3}"), bytes(false)])),
        (json!(null), sequence(&[split(r"\p{L}+\s+\p{L}+|\s+"), bytes(false)])),
        (json!(null), sequence(&[digits, bytes(false)])),
        (json!({ "type": "NFKC" }), bytes(true)),
    ] {
        let json = json!({ "normalizer": normalizer, "pre_tokenizer": pre, "model": bpe(corpus, 99, true) });
        assert!(matches!(Cuts::of(&json), Cuts::Never), "{json}");
    }
}

/// Tests the configurations of Llama tokenizers in different file versions.
#[test]
fn text_that_is_merged_as_a_whole_is_cut_at_spaces_that_no_token_spans() {
    let prepend = json!({ "type": "Sequence", "normalizers": [
        { "type": "Prepend", "prepend": "▁" }, { "type": "Replace", "pattern": { "String": " " }, "content": "▁" },
    ] });
    let metaspace = |scheme: &str, split: bool| json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split });
    // Tokens that include a space: after a comma and two spaces, and never after a letter except x.
    let corpus = "▁the ▁then ▁do ▁dog' then ,▁the ▁▁▁▁ x▁th ...▁ 42 31415 ▁ünï ▁42";
    let model = bpe(corpus, 99, false);
    let added = json!([{ "id": 9000, "content": "</s>", "special": true, "normalized": false, "lstrip": false, "rstrip": false, "single_word": false }]);
    let file = |normalizer: &serde_json::Value, pre: &serde_json::Value| {
        let mut model = model.clone();
        model["vocab"]["</s>"] = 9000.into();
        json!({ "version": "1.0", "added_tokens": added, "normalizer": normalizer, "pre_tokenizer": pre, "model": model })
    };
    let null = json!(null);
    for (normalizer, pre) in [
        (&prepend, &null),
        (&null, &metaspace("first", false)),
        (&null, &metaspace("always", false)),
        (&null, &metaspace("always", true)),
    ] {
        let json = file(normalizer, pre);
        let Cuts::Spaces(spaces) = Cuts::of(&json) else { panic!("{json}") };
        for unsafe_before in [',', '.', 'x', '▁', '>', '日'] {
            assert_eq!(spaces.before.contains(&unsafe_before), unsafe_before == '日', "{unsafe_before}");
        }
        for seed in 1..6 {
            let plain = text(seed, 40_000);
            assert!(agrees(&json, &plain) > 300);
            // Insert added tokens, with and without adjacent spaces.
            let marked = plain.replace("//", "</s>").replace("42", " </s> ");
            assert!(agrees(&json, &marked) > 300);
        }
        assert_eq!(agrees(&json, &"日本".repeat(4_000)), 1, "there is no space");
    }
    let changed = |change: fn(&mut serde_json::Value)| {
        let mut json = file(&prepend, &null);
        change(&mut json);
        assert!(matches!(Cuts::of(&json), Cuts::Never), "{json}");
    };
    changed(|j| j["model"]["end_of_word_suffix"] = "</w>".into());
    changed(|j| j["model"]["ignore_merges"] = true.into());
    changed(|j| j["model"]["type"] = "Unigram".into());
    changed(|j| j["added_tokens"][0]["lstrip"] = true.into());
    changed(|j| j["added_tokens"][0]["content"] = "a b".into());
    changed(|j| j["normalizer"]["normalizers"][0]["prepend"] = "x".into());
    changed(|j| j["normalizer"]["normalizers"].as_array_mut().unwrap().push(json!({ "type": "Lowercase" })));
    changed(|j| {
        j["normalizer"] = json!(null);
        j["pre_tokenizer"] =
            json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": false });
    });
}
