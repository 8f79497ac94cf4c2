//! Checks that every request passes: its id, its origin, time limits, and the log.

use crate::app::App;
use crate::error::{ApiError, ApiResult, Failure};
use crate::names::name;
use crate::seats::{Receiving, Seat};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout_at;

/// The header with a request's id, in both directions.
const NAME: &str = "x-request-id";
/// Longer request ids are replaced.
const LONGEST_NAME: usize = 128;
/// An oversized body is read up to this many times the limit, so that its sender can read the error.
const MAX_READ_FACTOR: usize = 4;
/// Time during which a body may arrive at any rate.
const ANY_RATE: Duration = Duration::from_secs(10);
/// Minimum average bytes per second of a body after that time.
const MIN_RATE: f64 = 1000.0;
/// Paths that need no key: the liveness check, and the pages, which ask for the key.
const OPEN: [&str; 4] = ["/health", "/ready", "/", "/device"];

/// A request's id in logs.
#[derive(Clone, Debug)]
pub struct RequestName(pub String);

/// Assigns an id to a request, checks, times and logs it.
pub async fn guard(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let given = request.headers().get(NAME).and_then(|value| value.to_str().ok());
    let sane = |text: &&str| {
        !text.is_empty() && text.len() <= LONGEST_NAME && text.bytes().all(|b| b.is_ascii_graphic())
    };
    let id = given.filter(sane).map_or_else(|| name("req-"), str::to_owned);
    request.extensions_mut().insert(RequestName(id.clone()));
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    // A path from the client must not become a label.
    let route = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let mut response = match allowed(&app, &request) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    let status = response.status().as_u16();
    app.metrics.request(&route, status);
    let ms = began.elapsed().as_secs_f64() * 1e3;
    match response.extensions().get::<Failure>() {
        // Clients that wait for a model to load poll repeatedly.
        Some(Failure(why)) if status >= 500 && path != "/ready" => {
            tracing::error!(request = %id, %method, %path, status, ms, "{why}");
        }
        Some(Failure(why)) => tracing::info!(request = %id, %method, %path, status, ms, "{why}"),
        None => tracing::debug!(request = %id, %method, %path, status, ms, "answered"),
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(NAME, value);
    }
    response
}

fn allowed(app: &App, request: &Request) -> ApiResult<()> {
    let (headers, path) = (request.headers(), request.uri().path());
    one_host(request.version(), headers)?;
    own_page(app, headers)?;
    if app.keys.is_empty() || OPEN.contains(&path) || request.method() == Method::OPTIONS {
        return Ok(());
    }
    let key = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let key =
        key.and_then(|value| value.split_once(' ').filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer")));
    match key {
        Some((_, key)) if app.knows(key.trim()) => Ok(()),
        _ => Err(ApiError::unauthorized()),
    }
}

/// Requires exactly one Host header in HTTP/1.1, and at most one in any version (RFC 9112, 3.2). A proxy before this server might use the other one.
fn one_host(version: Version, headers: &HeaderMap) -> ApiResult<()> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let is_host =
        |host: &HeaderValue| host.as_bytes().iter().all(|b| b.is_ascii_graphic() && !b",/@?#\\".contains(b));
    match (hosts.next(), hosts.next()) {
        (None, _) if version < Version::HTTP_11 => Ok(()),
        (Some(host), None) if is_host(host) => Ok(()),
        (None, _) => Err(ApiError::invalid("The header Host is missing; HTTP/1.1 requires it")),
        (_, Some(_)) => Err(ApiError::invalid("The request has several Host headers, expected exactly one")),
        _ => Err(ApiError::invalid("The header Host is not a host with an optional port")),
    }
}

/// Rejects requests from pages of other origins: a browser lets them request any address, including this machine's.
fn own_page(app: &App, headers: &HeaderMap) -> ApiResult<()> {
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let Some(origin) = headers.get(header::ORIGIN) else { return local_name(app, host) };
    let origin = origin.to_str().unwrap_or_default();
    let own = origin.split_once("://").is_some_and(|(_, place)| !place.is_empty() && place == host);
    if own || app.options.origins.iter().any(|known| known == "*" || known == origin) {
        return local_name(app, host);
    }
    let message =
        format!("Pages of {origin} may not send requests to this server; --cors-origin allows them");
    Err(ApiError { status: axum::http::StatusCode::FORBIDDEN, ..ApiError::invalid(message) })
}

/// Requires a name of this machine if the server only serves this machine. Other names lead here through DNS rebinding.
fn local_name(app: &App, host: &str) -> ApiResult<()> {
    let local = app.address.is_some_and(|address| address.ip().is_loopback());
    if !local || !app.keys.is_empty() || host.is_empty() {
        return Ok(());
    }
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let is_local = name.eq_ignore_ascii_case("localhost")
        || name == app.options.host
        || name.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if is_local {
        return Ok(());
    }
    let message = format!("This server only answers this machine, not as {host}");
    Err(ApiError { status: axum::http::StatusCode::FORBIDDEN, ..ApiError::invalid(message) })
}

/// A body, and the memory that its request may occupy until it is answered.
pub struct HeldBody {
    /// The bytes of the body.
    pub body: Vec<u8>,
    /// Part of the server's budget, in KiB.
    pub memory: OwnedSemaphorePermit,
}

/// Bytes of a body that do not count toward the budget.
const FREE_BODY_BYTES: usize = 16 << 10;
/// Bytes that a JSON value occupies after parsing.
const VALUE: usize = 96;
/// Maximum number of JSON values in a body: an embedding request's 2048 texts of 500 ids each.
const MAX_VALUES: usize = 1 << 20;

/// Extends `held` until it covers `bytes`; the first `FREE_BODY_BYTES` bytes are free.
fn take(app: &App, held: &mut OwnedSemaphorePermit, bytes: usize) -> ApiResult<()> {
    let wanted = (bytes.saturating_sub(FREE_BODY_BYTES) >> 10).saturating_sub(held.num_permits());
    let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
    let more = Arc::clone(&app.memory).try_acquire_many_owned(wanted);
    let full = |_| ApiError::unavailable("Requests being read use all memory for requests", 2);
    held.merge(more.map_err(full)?);
    Ok(())
}

/// Returns an upper bound of the number of JSON values in a body. It counts the characters that start, separate and name values.
fn values(body: &[u8]) -> usize {
    let (mut count, mut quoted, mut escaped) = (1, false, false);
    for byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b',' | b':' | b'[' | b'{' if !quoted => count += 1,
            _ => {}
        }
    }
    count
}

/// Returns the body of a request.
///
/// # Errors
/// 413 if the body exceeds the limit of bytes or of values, 408 if it takes too long or arrives too slowly, 400 if it is incomplete. 503 if other
/// requests occupy all memory.
pub async fn body(app: &App, request: Request) -> ApiResult<HeldBody> {
    let (most, timeout) = (app.options.max_body, app.options.read_timeout);
    let none = || ApiError::unavailable("The server is stopping", 5);
    let mut held = Arc::clone(&app.memory).try_acquire_many_owned(0).map_err(|_| none())?;
    let _receiving = request.extensions().get::<Arc<Seat>>().map(Receiving::begin);
    let (mut stream, began) = (request.into_body().into_data_stream(), tokio::time::Instant::now());
    let (mut body, mut total) = (Vec::new(), 0);
    loop {
        let longest = timeout.min(ANY_RATE + Duration::from_secs_f64(total as f64 / MIN_RATE));
        let Ok(part) = timeout_at(began + longest, stream.next()).await else {
            return Err(ApiError::slow_body(total, longest.as_secs_f64()));
        };
        let Some(part) = part else { break };
        let part =
            part.map_err(|e| ApiError::invalid(format!("The body of the request was cut off: {e}")))?;
        total += part.len();
        if total <= most {
            take(app, &mut held, 2 * total)?;
            body.extend_from_slice(&part);
        } else {
            body = Vec::new();
        }
        if total > most.saturating_mul(MAX_READ_FACTOR) {
            break;
        }
    }
    if total > most {
        return Err(ApiError::large_body(most));
    }
    let count = values(&body);
    if count > MAX_VALUES {
        return Err(ApiError::many_values(count, MAX_VALUES));
    }
    take(app, &mut held, 2 * body.len() + count * VALUE)?;
    Ok(HeldBody { body, memory: held })
}

/// Responds to an unknown path.
pub async fn nothing(request: Request) -> Response {
    ApiError::no_route(request.method().as_str(), request.uri().path()).into_response()
}

/// Responds to a known path with a method that is not supported.
pub async fn other_method(request: Request) -> Response {
    ApiError::method(request.method().as_str(), request.uri().path()).into_response()
}
