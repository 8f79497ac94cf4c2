//! Converts pieces of sequences to a response: one JSON object at the end, or streamed events.

use crate::error::{ApiError, ApiResult};
use crate::model::Running;
use crate::piece::{NewTokens, SequenceEnd};
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream::unfold;
use netcl::llm::engine::Usage;
use netcl::llm::sampler::Finish;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

/// Maximum silence of a stream: proxies close connections without data.
const PING: Duration = Duration::from_secs(15);

/// An event of a stream.
pub struct Event {
    /// Its name, which only some interfaces use.
    pub name: Option<&'static str>,
    /// Its data.
    pub data: Value,
}

impl Event {
    /// Returns an event without a name.
    pub fn of(data: Value) -> Self {
        Self { name: None, data }
    }
}

/// Framing of events in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Server-sent events that end with `[DONE]`.
    Openai,
    /// Server-sent events without an end mark.
    Named,
    /// One line of JSON per event.
    Lines,
}

impl Framing {
    fn write(self, event: &Event, out: &mut Vec<u8>) {
        let text = match (self, event.name) {
            (Self::Lines, _) => format!("{}\n", event.data),
            (_, Some(name)) => format!("event: {name}\ndata: {}\n\n", event.data),
            (_, None) => format!("data: {}\n\n", event.data),
        };
        out.extend_from_slice(text.as_bytes());
    }
    fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Lines => "application/x-ndjson",
            _ => "text/event-stream",
        })
    }
}

/// Converts pieces to the events and answers of an interface.
pub trait Wire: Send + 'static {
    /// Returns the events before the first piece.
    fn begin(&mut self) -> Vec<Event>;
    /// Returns the events of a piece.
    fn piece(&mut self, piece: &NewTokens) -> Vec<Event>;
    /// Returns the events after the last piece.
    fn end(&mut self, usage: &Totals) -> Vec<Event>;
    /// Returns the events of an error in the middle.
    fn failed(&mut self, error: &ApiError) -> Vec<Event> {
        vec![Event::of(error.json())]
    }
}

/// Total usage of all sequences of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Prompt tokens; each prompt counts once.
    pub prompt: usize,
    /// Prompt tokens that were in the cache.
    pub cached: usize,
    /// Generated tokens.
    pub made: usize,
    /// Time to the first token of the slowest sequence, in milliseconds.
    pub prompt_ms: f64,
    /// Time from the first token to the end of the slowest sequence.
    pub made_ms: f64,
}

impl Totals {
    /// Adds a sequence; the first of `choices` for a prompt counts the prompt.
    pub fn add(&mut self, choice: usize, choices: usize, usage: &Usage) {
        if choice.is_multiple_of(choices.max(1)) {
            self.prompt += usage.prompt;
            self.cached += usage.reused;
        }
        self.made += usage.made;
        self.prompt_ms = self.prompt_ms.max(usage.prompt_time.as_secs_f64() * 1e3);
        self.made_ms = self.made_ms.max(usage.generation_time.as_secs_f64() * 1e3);
    }

    /// Returns tokens of prompts, of those from the cache, and generated tokens.
    pub fn counts(&self) -> [usize; 3] {
        [self.prompt, self.cached, self.made]
    }

    /// Returns OpenAI's `usage`.
    pub fn usage(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.made,
            "total_tokens": self.prompt + self.made,
            "prompt_tokens_details": { "cached_tokens": self.cached },
        })
    }

    /// Returns llama.cpp's `timings`.
    pub fn timings(&self) -> Value {
        let read = self.prompt.saturating_sub(self.cached);
        // The first token comes with the prompt.
        let steps = self.made.saturating_sub(1);
        let speed = |n: usize, ms: f64| if ms > 0.0 { n as f64 * 1e3 / ms } else { 0.0 };
        json!({
            "prompt_n": read,
            "prompt_ms": self.prompt_ms,
            "prompt_per_second": speed(read, self.prompt_ms),
            "predicted_n": self.made,
            "predicted_ms": self.made_ms,
            "predicted_per_second": speed(steps, self.made_ms),
        })
    }
}

/// Returns OpenAI's finish reason.
pub fn finish_reason(finish: &Finish) -> &'static str {
    match finish {
        Finish::Token(_) | Finish::Text(_) => "stop",
        Finish::Length | Finish::Context => "length",
        Finish::Stopped => "abort",
    }
}

/// Returns the error of a request whose model was unloaded.
fn gone() -> ApiError {
    ApiError::unavailable("The model was unloaded while it answered; try again", 1)
}

/// Receives all pieces of a request.
///
/// # Errors
/// The error of the first sequence that failed.
pub async fn collect(
    mut running: Running,
    choices: usize,
    mut each: impl FnMut(NewTokens),
) -> ApiResult<Totals> {
    let mut totals = Totals::default();
    let mut left = running.choices;
    while left > 0 {
        let piece = running.pieces.recv().await.ok_or_else(gone)?;
        match &piece.end {
            Some(SequenceEnd::Failed(error)) => return Err(ApiError::of_text(error)),
            Some(SequenceEnd::Done(_, usage)) => {
                left -= 1;
                totals.add(piece.choice, choices, usage);
            }
            None => {}
        }
        each(piece);
    }
    running.totals = Some(totals.counts());
    Ok(totals)
}

/// A streaming response.
struct Streaming<W> {
    running: Option<Running>,
    wire: W,
    framing: Framing,
    choices: usize,
    left: usize,
    totals: Totals,
    ready: VecDeque<Bytes>,
}

impl<W: Wire> Streaming<W> {
    fn push(&mut self, events: &[Event]) {
        let mut out = Vec::new();
        events.iter().for_each(|event| self.framing.write(event, &mut out));
        if !out.is_empty() {
            self.ready.push_back(out.into());
        }
    }

    fn piece(&mut self, piece: &NewTokens) {
        let failed = match &piece.end {
            Some(SequenceEnd::Failed(error)) => Some(ApiError::of_text(error)),
            Some(SequenceEnd::Done(_, usage)) => {
                self.left = self.left.saturating_sub(1);
                self.totals.add(piece.choice, self.choices, usage);
                None
            }
            None => None,
        };
        let events = match &failed {
            Some(error) => self.wire.failed(error),
            None => self.wire.piece(piece),
        };
        self.push(&events);
        if failed.is_some() {
            self.running = None;
        } else if self.left == 0 {
            self.finish();
        }
    }

    fn finish(&mut self) {
        let events = self.wire.end(&self.totals);
        self.push(&events);
        if self.framing == Framing::Openai {
            self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
        }
        if let Some(mut running) = self.running.take() {
            running.totals = Some(self.totals.counts());
        }
    }

    /// Returns the next bytes; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Some(bytes);
            }
            let running = self.running.as_mut()?;
            match tokio::time::timeout(PING, running.pieces.recv()).await {
                Ok(Some(piece)) => self.piece(&piece),
                Ok(None) => {
                    let events = self.wire.failed(&gone());
                    self.push(&events);
                    self.running = None;
                }
                Err(_) if self.framing == Framing::Lines => {}
                Err(_) => return Some(Bytes::from_static(b": still working\n\n")),
            }
        }
    }
}

/// Returns a response that streams events; `choices` is the number of sequences per prompt.
pub fn respond<W: Wire>(running: Running, wire: W, framing: Framing, choices: usize) -> Response {
    let left = running.choices;
    let (totals, ready) = (Totals::default(), VecDeque::new());
    let mut streaming = Streaming { running: Some(running), wire, framing, choices, left, totals, ready };
    let events = streaming.wire.begin();
    streaming.push(&events);
    let stream = unfold(streaming, |mut streaming| async move {
        let bytes = streaming.next().await?;
        Some((Ok::<_, Infallible>(bytes), streaming))
    });
    let mut response = Response::new(Body::from_stream(stream));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, framing.content_type());
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Without this header, nginx buffers streams.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
