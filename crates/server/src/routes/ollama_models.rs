//! Ollama's routes for model and server information: `/api/tags`, `/api/ps`, `/api/show`, `/api/version`, and the unsupported ones.

use super::Shared;
use super::format::missing;
use crate::app::App;
use crate::error::{ApiError, ApiResult, json_response};
use crate::fields::Fields;
use crate::model::{Loaded, ModelSpec};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// The version of Ollama's interface. Clients compare it with the version they need: an editor rejects servers below 0.6.4.
const INTERFACE: &str = "0.12.0";

/// The last day of the year 2318 in seconds since 1970. Clients treat it as "forever".
const LAST_DAY: u64 = 11_013_235_200;

/// Formats a time in RFC 3339 and UTC.
fn date(since: Duration) -> String {
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Periods of 400 years have 146,097 days; the first of March begins a year (H. Hinnant, "chrono-compatible low-level date algorithms").
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:06}Z", since.subsec_micros())
}

/// Returns the current time.
pub fn today() -> String {
    date(UNIX_EPOCH.elapsed().unwrap_or_default())
}

/// Returns a successful response.
pub fn ok(body: &Value) -> Response {
    json_response(StatusCode::OK, body)
}

pub async fn version() -> Response {
    ok(&json!({ "version": INTERFACE, "netcl": env!("CARGO_PKG_VERSION") }))
}

/// Rejects Ollama's operations on its model library, which this server does not have.
pub async fn refused(request: Request) -> Response {
    let (method, path) = (request.method().as_str(), request.uri().path());
    let message = format!(
        "{method} {path} is not supported: this server's models are those that `netcl serve -m NAME=PATH` names"
    );
    let error = ApiError { code: Some("unsupported_url"), ..ApiError::invalid(message) };
    of_ollama(error)
}

/// Returns an error in Ollama's format, a sentence.
pub fn of_ollama(error: ApiError) -> Response {
    let body = axum::body::Body::from(json!({ "error": error.message }).to_string());
    let (parts, _) = error.into_response().into_parts();
    Response::from_parts(parts, body)
}

fn details(loaded: Option<&Loaded>) -> Value {
    let (family, parameters, kind) = match loaded {
        Some(loaded) => {
            let about = &loaded.about;
            (about.architecture, size(about.parameters), about.quantization.to_uppercase())
        }
        None => ("", String::new(), String::new()),
    };
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": parameters,
        "quantization_level": kind,
    })
}

/// Formats a parameter count: `260K`, `1.1B`.
fn size(parameters: u64) -> String {
    let n = parameters as f64;
    match parameters {
        0..1_000_000 => format!("{:.0}K", n / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}M", n / 1e6),
        _ => format!("{:.1}B", n / 1e9),
    }
}

/// Returns the list entry of a model.
fn listed(spec: &ModelSpec, bytes: u64, loaded: Option<&Loaded>) -> Map<String, Value> {
    let mut one = Map::new();
    one.insert("name".into(), spec.name.as_str().into());
    one.insert("model".into(), spec.name.as_str().into());
    one.insert("size".into(), bytes.into());
    let digest = blake3::hash(spec.path.as_os_str().as_encoded_bytes());
    one.insert("digest".into(), digest.to_hex().as_str().into());
    one.insert("details".into(), details(loaded));
    one
}

/// Lists all models.
pub async fn tags(State(app): Shared) -> Response {
    let one = |(spec, loaded): (&ModelSpec, Option<Arc<Loaded>>)| {
        let changed = std::fs::metadata(&spec.path).and_then(|file| file.modified()).ok();
        let changed = changed.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        let mut one = listed(spec, bytes(&spec.path), loaded.as_deref());
        one.insert("modified_at".into(), date(changed).into());
        Value::from(one)
    };
    let list: Value = app.models.each().map(one).collect();
    ok(&json!({ "models": list }))
}

/// Returns the bytes of a file, or of the files in a folder.
fn bytes(path: &std::path::Path) -> u64 {
    let length = |path: &std::path::Path| std::fs::metadata(path).map_or(0, |file| file.len());
    match std::fs::read_dir(path) {
        Ok(files) => files.flatten().map(|file| length(&file.path())).sum(),
        Err(_) => length(path),
    }
}

/// Lists the loaded models.
pub async fn ps(State(app): Shared) -> Response {
    // The model is unloaded when another one needs its memory: the time is unknown.
    let never = date(Duration::from_secs(LAST_DAY));
    let one = |(spec, loaded): (&ModelSpec, Option<Arc<Loaded>>)| {
        let loaded = loaded?;
        let mut one = listed(spec, loaded.about.memory, Some(&loaded));
        one.insert("size_vram".into(), loaded.about.memory.into());
        one.insert("context_length".into(), loaded.about.longest.into());
        one.insert("expires_at".into(), never.as_str().into());
        Some(Value::from(one))
    };
    let list: Value = app.models.each().filter_map(one).collect();
    ok(&json!({ "models": list }))
}

/// Returns the name of a model: Ollama adds `:latest` to a name without a tag.
pub fn named(app: &App, fields: &mut Fields) -> ApiResult<String> {
    let (new, old) = (fields.text("model")?, fields.text("name")?);
    let Some(name) = new.or(old) else { return Err(missing("model")) };
    match name.strip_suffix(":latest").filter(|_| app.models.check(&name).is_err()) {
        Some(short) => Ok(short.to_owned()),
        None => Ok(name),
    }
}

/// Returns the properties of a model.
///
/// # Errors
/// 404, and errors from loading it.
pub async fn show(app: &Arc<App>, body: &[u8]) -> ApiResult<Response> {
    let mut fields = Fields::of_body(body)?;
    let name = named(app, &mut fields)?;
    fields.flag("verbose")?;
    fields.end()?;
    let model = app.models.get(Some(&name)).await?;
    let about = &model.about;
    let mut info = Map::new();
    info.insert("general.architecture".into(), about.architecture.into());
    info.insert("general.parameter_count".into(), about.parameters.into());
    info.insert(format!("{}.context_length", about.architecture), about.longest.into());
    info.insert(format!("{}.embedding_length", about.architecture), about.width.into());
    let mut abilities = vec!["completion", "embedding"];
    if model.calls_tools() {
        abilities.push("tools");
    }
    if model.reasons() {
        abilities.push("thinking");
    }
    Ok(ok(&json!({
        "modelfile": "",
        "parameters": "",
        "template": "",
        "license": "",
        "details": details(Some(&model)),
        "model_info": info,
        "capabilities": abilities,
        "modified_at": date(Duration::from_secs(about.created)),
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (1_795_601_576, "2026-11-25T10:12:56.000000Z"),
            (4_107_542_399, "2100-02-28T23:59:59.000000Z"),
        ] {
            assert_eq!(date(Duration::from_secs(seconds)), expected);
        }
        assert_eq!(
            (size(260_032), size(15_191_712), size(8_030_000_000)),
            ("260K".into(), "15.2M".into(), "8.0B".into())
        );
    }
}
