//! `POST /v1/embeddings`: the mean of a text's last hidden states, normalized to length 1.

use super::aside;
use super::completions::{Prompt, prompts};
use super::harmless;
use crate::app::App;
use crate::error::{ApiError, ApiResult, json_response};
use crate::fields::Fields;
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::sync::Arc;

/// Maximum number of texts per request.
pub const MAX_TEXTS: usize = 2048;

/// Returns the vectors of texts, and their total number of tokens.
///
/// # Errors
/// 400 for a text that is longer than the context, errors of the model.
pub async fn embedded(
    app: &Arc<App>,
    model: Option<&str>,
    texts: Vec<Prompt>,
) -> ApiResult<(String, Vec<Vec<f32>>, usize)> {
    let model = app.models.get(model).await?;
    let _place = app.places(&model, 1)?;
    let own = Arc::clone(&model);
    let ids = aside(app, move || {
        let one = |text: &Prompt| {
            let ids = text.ids(&own, "input")?;
            let longest = own.about.longest;
            match ids.len() {
                0 => Err(ApiError::field("input", "input: an empty text cannot be embedded")),
                n if n > longest => Err(ApiError::context(n, longest, "input")),
                _ => match ids.iter().find(|id| **id as usize >= own.about.vocab) {
                    Some(id) => Err(ApiError::field("input", format!("input: token {id} is unknown"))),
                    None => Ok(ids),
                },
            }
        };
        texts.iter().map(one).collect::<ApiResult<Vec<_>>>()
    })
    .await?;
    let tokens = ids.iter().map(Vec::len).sum();
    let vectors = model.embed(ids).await?;
    Ok((model.name.clone(), vectors, tokens))
}

/// Embeds texts.
///
/// # Errors
/// 400 with a field name, errors of the model.
pub async fn embeddings(app: &Arc<App>, body: &[u8]) -> ApiResult<Response> {
    let mut fields = Fields::of_body(body)?;
    let model = fields.text("model")?;
    let texts = prompts(fields.any("input"), "input", MAX_TEXTS)?;
    // A tokenizer may add a leading token, which does not represent any text.
    if texts.iter().any(|text| matches!(text, Prompt::Text(text) if text.is_empty())) {
        return Err(ApiError::field("input", "input: an empty text cannot be embedded"));
    }
    let as_bytes = match fields.text("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        other => return Err(super::format::unknown("encoding_format", other)),
    };
    let wanted = fields.whole("dimensions", 1, usize::MAX)?;
    harmless(&mut fields)?;
    fields.end()?;
    let loaded = app.models.get(model.as_deref()).await?;
    if let Some(wanted) = wanted.filter(|wanted| *wanted != loaded.about.width) {
        let message = format!(
            "dimensions: {wanted} requested, but this model's vectors have {} and it does not support truncated embeddings",
            loaded.about.width
        );
        return Err(ApiError::field("dimensions", message));
    }
    let (name, vectors, tokens) = embedded(app, model.as_deref(), texts).await?;
    let vector = |vector: &Vec<f32>| match as_bytes {
        true => {
            let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            Value::from(STANDARD.encode(bytes))
        }
        false => vector.iter().map(|x| f64::from(*x)).collect(),
    };
    let entry = |(index, one): (usize, &Vec<f32>)| json!({ "object": "embedding", "index": index, "embedding": vector(one) });
    let data: Value = vectors.iter().enumerate().map(entry).collect();
    let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
    Ok(json_response(
        StatusCode::OK,
        &json!({ "object": "list", "data": data, "model": name, "usage": usage }),
    ))
}
