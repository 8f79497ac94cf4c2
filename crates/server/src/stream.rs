//! From pieces of texts to a response: one JSON object at the end, or events as they come.

use crate::error::{ApiError, ApiResult};
use crate::model::Running;
use crate::piece::{End, Piece};
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

/// How long a stream may be silent: proxies close what seems to be dead.
const PING: Duration = Duration::from_secs(15);

/// An event of a stream.
pub struct Event {
    /// Its name, which only some interfaces have.
    pub name: Option<&'static str>,
    /// What it says.
    pub data: Value,
}

impl Event {
    /// Without a name.
    pub fn of(data: Value) -> Self {
        Self { name: None, data }
    }
}

/// How events lie in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Server-sent events that end with `[DONE]`.
    Openai,
    /// Server-sent events that end by themselves.
    Named,
    /// A line of JSON each.
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

/// What makes an interface's events and answers of pieces.
pub trait Wire: Send + 'static {
    /// Before the first piece.
    fn begin(&mut self) -> Vec<Event>;
    /// What a piece says.
    fn piece(&mut self, piece: &Piece) -> Vec<Event>;
    /// Behind the last piece.
    fn end(&mut self, usage: &Totals) -> Vec<Event>;
    /// An error in the middle.
    fn failed(&mut self, error: &ApiError) -> Vec<Event> {
        vec![Event::of(error.json())]
    }
}

/// What all texts of a request took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Tokens of prompts, each prompt once.
    pub prompt: usize,
    /// Of those, tokens that were in the cache.
    pub cached: usize,
    /// New tokens.
    pub made: usize,
    /// Until the first token, of the slowest text, in milliseconds.
    pub prompt_ms: f64,
    /// From the first token to the end, of the slowest text.
    pub made_ms: f64,
}

impl Totals {
    /// Adds a text; of `choices` for a prompt the first one counts the prompt.
    pub fn add(&mut self, choice: usize, choices: usize, usage: &Usage) {
        if choice.is_multiple_of(choices.max(1)) {
            self.prompt += usage.prompt;
            self.cached += usage.reused;
        }
        self.made += usage.made;
        self.prompt_ms = self.prompt_ms.max(usage.prompt_time.as_secs_f64() * 1e3);
        self.made_ms = self.made_ms.max(usage.generation_time.as_secs_f64() * 1e3);
    }

    /// Tokens of prompts, of those from the cache, and new ones.
    pub fn counts(&self) -> [usize; 3] {
        [self.prompt, self.cached, self.made]
    }

    /// OpenAI's `usage`.
    pub fn usage(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.made,
            "total_tokens": self.prompt + self.made,
            "prompt_tokens_details": { "cached_tokens": self.cached },
        })
    }

    /// llama.cpp's `timings`.
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

/// OpenAI's word for why a text ended.
pub fn finish_reason(finish: &Finish) -> &'static str {
    match finish {
        Finish::Token(_) | Finish::Text(_) => "stop",
        Finish::Length | Finish::Context => "length",
        Finish::Stopped => "abort",
    }
}

/// The error of a request whose model went away.
fn gone() -> ApiError {
    ApiError::unavailable("The model went away while it answered; try again", 1)
}

/// All pieces of a request, to their ends.
///
/// # Errors
/// That of the first text that failed.
pub async fn collect(mut running: Running, choices: usize, mut each: impl FnMut(Piece)) -> ApiResult<Totals> {
    let mut totals = Totals::default();
    let mut left = running.choices;
    while left > 0 {
        let piece = running.pieces.recv().await.ok_or_else(gone)?;
        match &piece.end {
            Some(End::Failed(error)) => return Err(ApiError::of_text(error)),
            Some(End::Done(_, usage)) => {
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

/// A response that streams.
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

    fn piece(&mut self, piece: &Piece) {
        let failed = match &piece.end {
            Some(End::Failed(error)) => Some(ApiError::of_text(error)),
            Some(End::Done(_, usage)) => {
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

    /// The next bytes; none at the end.
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

/// A response with events as they come; `choices` is the number of texts for each prompt.
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
    // nginx holds streams back otherwise.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
