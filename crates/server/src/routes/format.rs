//! `response_format`: the constraint on an answer.

use crate::error::{ApiError, ApiResult};
use crate::fields::Fields;
use crate::schemas::Format;
use serde_json::Value;

/// Parses `{"type": "text" | "json_object" | "json_schema", "json_schema": {"name", "schema", "strict"}}`.
///
/// # Errors
/// 400 with the invalid field.
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

/// Returns the schema in an object with its name and description. It is enforced regardless of `strict`.
///
/// # Errors
/// 400 if it is missing.
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

/// Returns the error of a missing required field.
pub fn missing(param: &str) -> ApiError {
    ApiError {
        code: Some("missing_required_parameter"),
        ..ApiError::field(param, format!("{param} is missing"))
    }
}

/// Returns the error of an unknown value.
pub fn unknown(param: &str, found: Option<&str>) -> ApiError {
    match found {
        None => missing(param),
        Some(found) => ApiError::field(param, format!("{param}: {found:?} is not supported")),
    }
}
