//! Status routes, and routes for tokens.

use super::format::missing;
use super::{Shared, aside, now};
use crate::app::App;
use crate::error::{ApiError, ApiResult, json_response};
use crate::fields::Fields;
use crate::metrics::Metrics;
use crate::model::{Loaded, ModelSpec, live};
use crate::profile::Times;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use netcl::device::Device;
use netcl::llm::tokenizer::Specials;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Content security policy: pages may only load their own content.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data: blob:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Maximum bytes of a text for one tokenization request.
const MAX_CONTENT: usize = 4 << 20;
/// Maximum bytes if the answer also contains the text of each token.
const MAX_PIECES: usize = 1 << 20;
/// Maximum bytes of a text from one detokenization request.
const MAX_TEXT: usize = 16 << 20;

fn page(text: &'static str) -> Response {
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

pub async fn chat_page() -> Response {
    page(include_str!("../page/chat.html"))
}

pub async fn device_page() -> Response {
    page(include_str!("../page/device.html"))
}

/// Returns the routes and their fields as an OpenAPI document.
pub async fn openapi() -> Response {
    let mut response = Response::new(Body::from(include_str!("../page/openapi.json")));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Returns a response of JSON text.
fn json_text(text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn ok(body: &Value) -> Response {
    json_response(StatusCode::OK, body)
}

/// Responds while the process is alive.
pub async fn health() -> Response {
    ok(&json!({ "status": "ok" }))
}

/// Reports whether requests are served.
pub async fn ready(State(app): Shared) -> Response {
    match (app.draining.load(Ordering::SeqCst), app.models.is_ready()) {
        (true, _) => ApiError::unavailable("The server is stopping", 5).into_response(),
        (false, false) => ApiError::unavailable("The model is being loaded", 1).into_response(),
        (false, true) => ok(&json!({ "status": "ready" })),
    }
}

/// Returns `vram` of each device once, by its name.
fn memory(devices: &[Device]) -> Vec<(String, [(&'static str, u64); 4])> {
    let mut out: Vec<(String, [(&'static str, u64); 4])> = Vec::new();
    for device in devices {
        let (stats, id) = (device.memory(), device.capabilities().id.clone());
        if out.iter().all(|(known, _)| *known != id) {
            let kinds = [
                ("live", stats.live as u64),
                ("reserved", stats.reserved as u64),
                ("peak", stats.peak as u64),
                ("total", netcl::llm::engine::available(device.capabilities())),
            ];
            out.push((id, kinds));
        }
    }
    out
}

pub async fn metrics(State(app): Shared) -> Response {
    let text = app.metrics.text(&app.models.busy(), &memory(&app.models.options().devices));
    let mut response = Response::new(Body::from(text));
    let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Returns the shortest number with the same f32 value: JSON would show 0.8 as 0.800000011920929.
fn shortest(x: f32) -> Value {
    x.to_string().parse::<f64>().ok().into()
}

pub async fn props(State(app): Shared) -> Response {
    let (options, first) = (app.models.options(), app.models.each().next());
    let loaded = first.and_then(|(_, loaded)| loaded);
    let sampling = loaded.as_ref().map(|loaded| loaded.about.sampling.clone()).unwrap_or_default();
    let devices: Vec<String> = options.devices.iter().map(|d| d.capabilities().name.clone()).collect();
    ok(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "device": devices.join(", "),
        "defaults": {
            "temperature": shortest(sampling.temperature),
            "top_p": shortest(sampling.top_p),
            "top_k": sampling.top_k,
            "min_p": shortest(sampling.min_p),
            "typical_p": shortest(sampling.typical_p),
            "repeat_penalty": shortest(sampling.repeat_penalty),
            "max_tokens": null,
        },
        "auth": !app.keys.is_empty(),
        "parallel": options.engine.texts,
        "context": loaded.map(|loaded| loaded.about.longest),
    }))
}

fn model_info(spec: &ModelSpec, loaded: Option<&Loaded>, started: u64) -> Value {
    let mut own = json!({ "loaded": loaded.is_some() });
    if let Some(loaded) = loaded {
        let about = &loaded.about;
        own = json!({
            "loaded": true,
            "context": about.longest,
            "trained_context": about.trained,
            "parameters": about.parameters,
            "architecture": about.architecture,
            "quantization": about.quantization,
            "chat_template": loaded.has_template(),
            "reasoning": loaded.reasons(),
            "tools": loaded.calls_tools(),
        });
    }
    let created = loaded.map_or(started, |loaded| loaded.about.created);
    json!({ "id": spec.name, "object": "model", "created": created, "owned_by": "netcl", "netcl": own })
}

pub async fn models(State(app): Shared) -> Response {
    let list = app.models.each().map(|(spec, loaded)| model_info(spec, loaded.as_deref(), app.since));
    ok(&json!({ "object": "list", "data": list.collect::<Value>() }))
}

pub async fn model(State(app): Shared, Path(name): Path<String>) -> Response {
    match app.models.each().find(|(spec, _)| spec.name == name) {
        Some((spec, loaded)) => ok(&model_info(spec, loaded.as_deref(), app.since)),
        None => ApiError::no_model(&name, &app.models.names()).into_response(),
    }
}

/// Returns the kernels, longest time first.
fn kernels(times: &Times) -> Value {
    let all: f64 = times.each.values().map(|(_, seconds)| seconds).sum();
    let steps = times.steps.max(1.0);
    let one = |(name, count, seconds): (&str, f64, f64)| {
        json!({
            "name": name, "share": seconds / all.max(f64::MIN_POSITIVE),
            "ms_per_step": seconds * 1e3 / steps, "launches_per_step": count / steps,
        })
    };
    times.sorted().into_iter().map(one).collect()
}

pub async fn device_data(State(app): Shared) -> Response {
    let options = app.models.options();
    let all = memory(&options.devices);
    let sum = |kind: usize| all.iter().map(|(_, kinds)| kinds[kind].1).sum::<u64>();
    let names: Vec<String> = options.devices.iter().map(|d| d.capabilities().name.clone()).collect();
    let busy = app.models.busy();
    let total = |of: fn(&crate::metrics::ModelLoad) -> usize| busy.iter().map(of).sum::<usize>();
    let counters = app.models.metrics();
    let (totals, rates) = app.metrics.tokens(&counters);
    let [cancelled, failed] = Metrics::cancelled_and_failed(&counters);
    let mut times = Times::default();
    app.models.each().filter_map(|(_, loaded)| loaded).for_each(|loaded| times.add(&loaded.kernels()));
    let of_model = |(spec, loaded): (&ModelSpec, Option<Arc<Loaded>>)| {
        let bytes = loaded.as_ref().map_or(0, |loaded| loaded.about.memory);
        json!({ "id": spec.name, "loaded": loaded.is_some(), "memory_bytes": bytes })
    };
    ok(&json!({
        "time_s": now(),
        "uptime_s": app.started.elapsed().as_secs_f64(),
        "device": {
            "name": names.join(", "),
            "memory_bytes": sum(3),
            "used_bytes": live(&options.devices),
            "peak_bytes": sum(2),
        },
        "engine": {
            "running": total(|b| b.running),
            "waiting": total(|b| b.waiting),
            "slots": options.engine.texts * busy.len().max(1),
            "pages_used": total(|b| b.used),
            "pages_total": total(|b| b.pages),
            "page_tokens": options.engine.page,
        },
        "tokens": {
            "prompt_total": totals[0],
            "generated_total": totals[1],
            "prompt_per_second": rates[0],
            "generated_per_second": rates[1],
        },
        "requests": {
            "total": app.metrics.answered(),
            "errors": failed,
            "rejected": app.metrics.rejected.get(),
            "cancelled": cancelled,
        },
        "kernels": kernels(&times),
        "profile": { "every": options.profile, "steps": times.steps },
        "models": app.models.each().map(of_model).collect::<Value>(),
    }))
}

/// `{"content": "text", "add_special": false, "parse_special": true, "with_pieces": false}` → `{"tokens": [ids]}`.
pub async fn tokenize(app: &Arc<App>, body: &[u8]) -> ApiResult<Response> {
    let mut fields = Fields::of_body(body)?;
    let model = fields.text("model")?;
    let Some(content) = fields.text("content")? else { return Err(missing("content")) };
    let begin = fields.flag("add_special")?.unwrap_or(false);
    let specials = match fields.flag("parse_special")?.unwrap_or(true) {
        true => Specials::Parsed,
        false => Specials::Plain,
    };
    let pieces = fields.flag("with_pieces")?.unwrap_or(false);
    fields.end()?;
    let most = if pieces { MAX_PIECES } else { MAX_CONTENT };
    if content.len() > most {
        let message = format!(
            "content has {} bytes, but at most {most} are tokenized at once; send parts",
            content.len()
        );
        return Err(ApiError::field("content", message));
    }
    let model = app.models.get(model.as_deref()).await?;
    aside(app, move || {
        let tokenizer = &model.text()?.tokenizer;
        let ids = match begin {
            true => tokenizer.encode_prompt(&content, specials),
            false => tokenizer.encode(&content, specials),
        };
        let ids = ids.map_err(|e| ApiError::of_field("content", &e))?;
        // A JSON tree would occupy many times the memory of the text.
        let mut text = String::from("{\"tokens\":[");
        for (at, id) in ids.iter().enumerate() {
            text += if at == 0 { "" } else { "," };
            if !pieces {
                text += &id.to_string();
                continue;
            }
            let bytes = tokenizer.piece(*id).unwrap_or_default();
            let piece = match std::str::from_utf8(bytes) {
                Ok(text) => Value::from(text),
                Err(_) => Value::from(bytes),
            };
            text += &format!("{{\"id\":{id},\"piece\":{piece}}}");
        }
        text += "]}";
        Ok(json_text(text))
    })
    .await
}

/// `{"tokens": [ids]}` → `{"content": "text"}`.
pub async fn detokenize(app: &Arc<App>, body: &[u8]) -> ApiResult<Response> {
    let mut fields = Fields::of_body(body)?;
    let model = fields.text("model")?;
    let Some(list) = fields.list("tokens")? else { return Err(missing("tokens")) };
    fields.end()?;
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids: Option<Vec<u32>> = list.iter().map(id).collect();
    let ids = ids.ok_or_else(|| ApiError::field("tokens", "tokens: expected an array of token ids"))?;
    let model = app.models.get(model.as_deref()).await?;
    aside(app, move || {
        let tokenizer = &model.text()?.tokenizer;
        let bytes = ids.iter().map(|id| tokenizer.piece(*id).map_or(0, <[u8]>::len)).sum::<usize>();
        if bytes > MAX_TEXT {
            let message = format!(
                "tokens: their text has {bytes} bytes, but at most {MAX_TEXT} are decoded at once; send parts"
            );
            return Err(ApiError::field("tokens", message));
        }
        let text = tokenizer.decode_all(&ids).map_err(|e| ApiError::of_field("tokens", &e))?;
        Ok(ok(&json!({ "content": text })))
    })
    .await
}
