//! Errors in OpenAI's format.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use netcl::device::{Error, ErrorKind};
use serde_json::{Value, json};

/// Reason why a request fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// One sentence: the problem, and the expected input.
    pub message: String,
    /// OpenAI's error type.
    pub kind: &'static str,
    /// The invalid field.
    pub param: Option<String>,
    /// Machine-readable code.
    pub code: Option<&'static str>,
    /// Seconds before a retry.
    pub retry_after: Option<u64>,
}

/// Result of a request.
pub type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), kind, param: None, code: None, retry_after: None }
    }

    /// 400: the request is invalid.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400 for one of its fields.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), code: Some("invalid_value"), ..Self::invalid(message) }
    }

    /// 400 for a field that this server does not support.
    pub fn unknown(param: &str) -> Self {
        let message = format!("{param}: this field is not supported; nothing was ignored; omit it");
        Self { code: Some("unsupported_parameter"), ..Self::field(param, message) }
    }

    /// 400: the prompt is longer than the maximum sequence length.
    pub fn context(tokens: usize, longest: usize, param: &str) -> Self {
        let message = format!(
            "This model's maximum context length is {longest} tokens, and the prompt has {tokens} tokens. \
             Nothing was cut: shorten the prompt."
        );
        Self { code: Some("context_length_exceeded"), ..Self::field(param, message) }
    }

    /// 400: the same for a prompt that was not encoded completely.
    pub fn long_context(longest: usize, param: &str) -> Self {
        let message = format!(
            "This model's maximum context length is {longest} tokens, and the prompt is much longer. Nothing was cut: \
             shorten the prompt."
        );
        Self { code: Some("context_length_exceeded"), ..Self::field(param, message) }
    }

    /// 401.
    pub fn unauthorized() -> Self {
        let message =
            "An API key is required: send the header Authorization: Bearer KEY with a key of this server";
        let error = Self::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message);
        Self { code: Some("invalid_api_key"), ..error }
    }

    /// 404: unknown model.
    pub fn no_model(name: &str, known: &[&str]) -> Self {
        let known = known.join(", ");
        let message = format!("The model {name:?} does not exist here; this server has {known}");
        let error = Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message);
        Self { code: Some("model_not_found"), param: Some("model".into()), ..error }
    }

    /// 404: unknown path.
    pub fn no_route(method: &str, path: &str) -> Self {
        let hint = match path.trim_start_matches('/').split('/').next() {
            Some("chat" | "completions" | "embeddings" | "models" | "responses") => {
                format!("; clients of OpenAI's API must use this server's address followed by /v1: /v1{path}")
            }
            _ => "; /openapi.json lists the routes".into(),
        };
        let message = format!("Unknown route {method} {path}{hint}");
        Self {
            code: Some("unknown_url"),
            ..Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
        }
    }

    /// 405: method not allowed.
    pub fn method(method: &str, path: &str) -> Self {
        let message = format!("{path} does not support {method}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    /// 408: the body did not arrive, or arrived too slowly.
    pub fn slow_body(bytes: usize, seconds: f64) -> Self {
        let message =
            format!("The body of the request timed out: {bytes} bytes arrived within {seconds:.1} s");
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
    }

    /// 413: the body is too large.
    pub fn large_body(most: usize) -> Self {
        let message = format!("The body of the request is larger than {most} bytes");
        Self {
            code: Some("request_too_large"),
            ..Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
        }
    }

    /// 413: the body has too many values.
    pub fn many_values(found: usize, most: usize) -> Self {
        let message = format!(
            "The body of the request has {found} JSON values, but at most {most} are accepted: send several requests"
        );
        Self {
            code: Some("request_too_large"),
            ..Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
        }
    }

    /// 429: the maximum number of requests is already waiting.
    pub fn full(waiting: usize, seconds: u64) -> Self {
        let message = format!("The queue is full: {waiting} texts are waiting; try again in {seconds} s");
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        Self { code: Some("rate_limit_exceeded"), retry_after: Some(seconds), ..error }
    }

    /// 503: temporarily unavailable.
    pub fn unavailable(message: impl Into<String>, seconds: u64) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message);
        Self { retry_after: Some(seconds), ..error }
    }

    /// 500: a defect, or a device that failed.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// Converts a library error about the content of the field `param`.
    pub fn of_field(param: &str, error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Format | ErrorKind::Unsupported | ErrorKind::Shape => {
                Self::field(param, error.message())
            }
            _ => Self::of(error),
        }
    }

    /// Converts a library error that the request did not cause.
    pub fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Memory => {
                Self { code: Some("out_of_memory"), ..Self::unavailable(error.message(), 5) }
            }
            _ => Self::internal(error.to_string()),
        }
    }

    /// Returns the error of a single sequence that failed. If schema, biases and penalties leave no token, the request is invalid.
    pub fn of_text(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Format | ErrorKind::Unsupported => Self::invalid(error.message()),
            _ => Self::of(error),
        }
    }

    /// Returns the response body.
    pub fn json(&self) -> Value {
        json!({ "error": { "message": self.message, "type": self.kind, "param": self.param, "code": self.code } })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, &self.json());
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(Failure(self.message));
        response
    }
}

/// Log information about a failed request.
#[derive(Clone, Debug)]
pub struct Failure(pub String);

/// Returns a JSON response.
pub fn json_response(status: StatusCode, body: &Value) -> Response {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
