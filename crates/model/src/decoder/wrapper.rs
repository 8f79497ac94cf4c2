//! Multimodal models with image input: the configuration and the weights of their text model. Only Gemma 3 is supported.

use super::field_rules::shown;
use netcl_tensor::{Error, Result};
use serde_json::{Map, Value};

/// `model_type` of a multimodal model, that of its text model, and the architecture of the text model alone.
const WRAPPERS: &[[&str; 3]] = &[["gemma3", "gemma3_text", "Gemma3ForCausalLM"]];

/// Fields of the whole model without effect on its text model.
const OUTSIDE: &[&str] = &[
    "architectures",
    "auto_map",
    "mm_tokens_per_image",
    "model_type",
    "processor_class",
    "text_config",
    "vision_config",
];

/// Returns the configuration of the text model in the file of a multimodal model, or `None` for another model.
///
/// # Errors
/// `Format` or `Unsupported` with the field.
pub fn text_of(config: &Value) -> Result<Option<Value>> {
    let Some(map) = config.as_object() else { return Ok(None) };
    let found = map.get("model_type").and_then(|name| WRAPPERS.iter().find(|[whole, ..]| name == whole));
    let Some([whole, text, architecture]) = found else { return Ok(None) };
    let mut out = match map.get("text_config") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(inner)) => inner.clone(),
        Some(other) => {
            return Err(Error::format(format!("text_config is {}, expected an object", shown(other))));
        }
    };
    match out.get("model_type") {
        None | Some(Value::Null) => {}
        Some(name) if name == text => {}
        Some(other) => {
            return Err(Error::unsupported(format!(
                "text_config.model_type is {}, expected {text:?} in a {whole} model",
                shown(other)
            )));
        }
    }
    out.insert("model_type".into(), (*text).into());
    out.insert("architectures".into(), Value::from(vec![*architecture]));
    for (name, value) in map.iter().filter(|(name, value)| {
        !value.is_null() && !OUTSIDE.contains(&name.as_str()) && !name.ends_with("_token_index")
    }) {
        if name == "tie_word_embeddings"
            && out.get(name).is_some_and(|inner| !inner.is_null() && inner != value)
        {
            return Err(Error::format(format!(
                "tie_word_embeddings is {}, but text_config.tie_word_embeddings is not; make them equal",
                shown(value)
            )));
        }
        let unset = out.get(name).is_none_or(Value::is_null);
        if unset {
            out.insert(name.clone(), value.clone());
        }
    }
    // `transformers` reads it only in a separate text model, not in the whole model.
    if out.contains_key(CAP) {
        out.insert(CAP.into(), Value::Null);
    }
    Ok(Some(out.into()))
}

const CAP: &str = "final_logit_softcapping";

/// Returns a note on an ignored field of the text model.
pub fn note(config: &Value) -> Option<String> {
    let cap = config.get("text_config")?.get(CAP).filter(|cap| !cap.is_null())?;
    Some(format!(
        "text_config.{CAP} is {}: ignored, as in transformers for a model that reads images",
        shown(cap)
    ))
}

/// Returns the text model's name of a tensor of the whole model, or `None` for an image part.
pub fn text_name(name: &str) -> Option<String> {
    let parts =
        ["vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."];
    if parts.iter().any(|part| name.starts_with(part)) {
        return None;
    }
    // Older files contain the whole text model, newer ones only its layers.
    let whole = name.strip_prefix("language_model.").map(String::from);
    Some(
        whole
            .or_else(|| Some(format!("model.{}", name.strip_prefix("model.language_model.")?)))
            .unwrap_or(name.into()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_text_model_of_gemma_3_has_the_fields_around_it() {
        let whole = json!({
            "model_type": "gemma3", "eos_token_id": [1, 106], "image_token_index": 9, "vision_config": {}, "dtype": "bfloat16",
            "text_config": { "hidden_size": 64, "dtype": null, "final_logit_softcapping": 3.0 },
        });
        assert!(note(&whole).unwrap().contains("final_logit_softcapping is 3.0: ignored"));
        let text = text_of(&whole).unwrap().unwrap();
        assert_eq!(
            text,
            json!({
                "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "eos_token_id": [1, 106], "dtype": "bfloat16",
                "hidden_size": 64, "final_logit_softcapping": null,
            })
        );
        assert!(text_of(&json!({ "model_type": "llama" })).unwrap().is_none());
        for (inner, part) in
            [(json!(3), "text_config is 3"), (json!({ "model_type": "llama" }), "gemma3_text")]
        {
            let e = text_of(&json!({ "model_type": "gemma3", "text_config": inner })).unwrap_err();
            assert!(e.message().contains(part), "{e}");
        }
    }

    #[test]
    fn tensors_of_the_text_model_have_its_names() {
        for (whole, text) in [
            ("language_model.model.norm.weight", Some("model.norm.weight")),
            ("language_model.lm_head.weight", Some("lm_head.weight")),
            ("model.language_model.norm.weight", Some("model.norm.weight")),
            ("lm_head.weight", Some("lm_head.weight")),
            ("vision_tower.x", None),
            ("model.multi_modal_projector.x", None),
        ] {
            assert_eq!(text_name(whole).as_deref(), text, "{whole}");
        }
    }
}
