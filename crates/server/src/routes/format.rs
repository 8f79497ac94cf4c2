//! `response_format`: what an answer has to follow.

use crate::error::{ApiError, ApiResult};
use crate::fields::Fields;
use crate::schemas::Format;
use serde_json::Value;

/// `{"type": "text" | "json_object" | "json_schema", "json_schema": {"name", "schema", "strict"}}`.
///
/// # Errors
/// 400 naming the field that is wrong.
pub fn response_format(fields: &mut Fields) -> ApiResult<Format> {
    let Some(mut format) = fields.object("response_format")? else { return Ok(Format::Text) };
    let of = match format.text("type")?.as_deref() {
        Some("text") => Format::Text,
        Some("json_object") => Format::Object,
        Some("json_schema") => {
            let Some(mut json) = format.object("json_schema")? else {
                return Err(missing("response_format.json_schema"));
            };
            let schema = schema(&mut json, "response_format.json_schema")?;
            json.end()?;
            schema
        }
        other => return Err(unknown("response_format.type", other)),
    };
    format.end()?;
    Ok(of)
}

/// The schema in an object that also names and describes it. `strict` or not, it is followed.
///
/// # Errors
/// 400 if there is none.
pub fn schema(json: &mut Fields, place: &str) -> ApiResult<Format> {
    json.text("name")?;
    json.text("description")?;
    json.flag("strict")?;
    let param = format!("{place}.schema");
    match json.any("schema") {
        Some(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(Format::Schema(schema, param)),
        Some(other) => Err(crate::fields::wrong(&param, &other, "an object")),
        None => Err(missing(&param)),
    }
}

/// A field that has to be there.
pub fn missing(param: &str) -> ApiError {
    ApiError {
        code: Some("missing_required_parameter"),
        ..ApiError::field(param, format!("{param} is missing"))
    }
}

/// A word that is not known.
pub fn unknown(param: &str, found: Option<&str>) -> ApiError {
    match found {
        None => missing(param),
        Some(found) => ApiError::field(param, format!("{param}: {found:?} is not supported")),
    }
}
