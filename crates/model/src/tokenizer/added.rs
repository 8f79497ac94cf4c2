//! Added tokens with the rules of `transformers`: `tokenizer_config.json` overrides `tokenizer.json`.

use serde_json::Value;

/// Fields that determine how an added token is found in a text.
const FLAGS: [&str; 5] = ["single_word", "lstrip", "rstrip", "normalized", "special"];
/// Classes that use `tokenizer.json` unchanged.
const AS_IT_IS: [&str; 4] =
    ["PreTrainedTokenizerFast", "TokenizersBackend", "PreTrainedTokenizer", "TokenizersFast"];

/// Changes the added tokens of a `tokenizer.json` to the result in `transformers` with this `tokenizer_config.json`. Returns true if anything
/// changed. The fields of `added_tokens_decoder` override those of the file. Classes with a separate normalizer look for special tokens in the
/// original text; the file's normalizer would put a `▁` before their names.
pub(super) fn settle(json: &mut Value, config: &Value) -> bool {
    let class = config["tokenizer_class"].as_str();
    let prepends =
        class.is_some_and(|class| !AS_IT_IS.contains(&class)) && has(&json["normalizer"], "Prepend");
    let mut changed = false;
    let tokens = json.get_mut("added_tokens").and_then(Value::as_array_mut);
    for token in tokens.into_iter().flatten().filter(|token| token.is_object()) {
        let said = &config["added_tokens_decoder"][token["id"].to_string()];
        if said["content"] == token["content"] {
            for flag in FLAGS {
                if said[flag].is_boolean() && said[flag] != token[flag] {
                    token[flag] = said[flag].clone();
                    changed = true;
                }
            }
        }
        if prepends && token["special"] == true && token["normalized"] == true {
            token["normalized"] = false.into();
            changed = true;
        }
    }
    changed
}

/// Returns true if a normalizer has a step of this type.
fn has(normalizer: &Value, step: &str) -> bool {
    let steps = normalizer["normalizers"].as_array();
    normalizer["type"] == step || steps.is_some_and(|steps| steps.iter().any(|inner| has(inner, step)))
}
