//! Metrics for Prometheus and for the device page.

use crate::piece::{NewTokens, SequenceEnd};
use netcl::llm::engine::StepCost;
use netcl::llm::sampler::Finish;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

type Labels = Vec<(&'static str, String)>;

/// Counters and histograms of the whole server.
pub struct Metrics {
    registry: Registry,
    requests: Family<Labels, Counter>,
    answered: Counter,
    /// Requests rejected because the queue was full.
    pub rejected: Counter,
    generated: Family<Labels, Counter>,
    prompt: Family<Labels, Counter>,
    cached: Family<Labels, Counter>,
    cancelled: Family<Labels, Counter>,
    errors: Family<Labels, Counter>,
    first: Family<Labels, Histogram>,
    between: Family<Labels, Histogram>,
    batch: Family<Labels, Histogram>,
    duration: Family<Labels, Histogram>,
    /// Gauges that are updated on request.
    now: Family<Labels, Gauge>,
    pages: Family<Labels, Gauge>,
    memory: Family<Labels, Gauge>,
    steps: Family<Labels, Gauge<f64, AtomicU64>>,
    launches: Family<Labels, Gauge>,
    /// The rates computed last.
    rates: Mutex<Option<Rates>>,
}

/// Time of the computation, tokens until then, and tokens per second; each for prompts and for generated tokens.
type Rates = (Instant, [u64; 2], [f64; 2]);

/// Metrics of one model.
#[derive(Clone)]
pub struct OfModel {
    /// Generated tokens.
    pub generated: Counter,
    /// Prompt tokens.
    pub prompt_tokens: Counter,
    /// Prompt tokens that were in the cache.
    pub cached_tokens: Counter,
    /// Sequences canceled because their client disconnected.
    pub cancelled: Counter,
    /// Sequences that failed.
    pub errors: Counter,
    /// Sequences per step.
    pub batch: Histogram,
    first: Histogram,
    between: Histogram,
    duration: Histogram,
}

/// Load of a model, for gauges.
#[derive(Clone, Debug, Default)]
pub struct ModelLoad {
    /// Its name.
    pub model: String,
    /// Sequences in prefill or decode.
    pub running: usize,
    /// Waiting sequences.
    pub waiting: usize,
    /// Pages in use by sequences.
    pub used: usize,
    /// All pages.
    pub pages: usize,
    /// Cost of its steps.
    pub costs: Vec<StepCost>,
}

fn times() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 16))
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Returns metrics with all values at zero.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("netcl");
        let mut metrics = Self {
            registry: Registry::default(),
            requests: Family::default(),
            answered: Counter::default(),
            rejected: Counter::default(),
            generated: Family::default(),
            prompt: Family::default(),
            cached: Family::default(),
            cancelled: Family::default(),
            errors: Family::default(),
            first: Family::new_with_constructor(times),
            between: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.0001, 2.0, 16))),
            batch: Family::new_with_constructor(|| Histogram::new(exponential_buckets(1.0, 2.0, 9))),
            duration: Family::new_with_constructor(times),
            now: Family::default(),
            pages: Family::default(),
            memory: Family::default(),
            steps: Family::default(),
            launches: Family::default(),
            rates: Mutex::default(),
        };
        registry.register("requests", "HTTP requests by route and status", metrics.requests.clone());
        registry.register(
            "requests_rejected",
            "Requests rejected because the queue was full",
            metrics.rejected.clone(),
        );
        registry.register("generated_tokens", "Tokens of answers", metrics.generated.clone());
        registry.register("prompt_tokens", "Tokens of prompts", metrics.prompt.clone());
        registry.register("prompt_tokens_cached", "Prompt tokens found in the cache", metrics.cached.clone());
        registry.register("texts_cancelled", "Texts whose client disconnected", metrics.cancelled.clone());
        registry.register("texts_failed", "Texts that ended with an error", metrics.errors.clone());
        registry.register(
            "time_to_first_token_seconds",
            "Time from a request to its first token",
            metrics.first.clone(),
        );
        registry.register("time_between_tokens_seconds", "Time between two tokens", metrics.between.clone());
        registry.register("batch_size", "Texts per step", metrics.batch.clone());
        registry.register(
            "text_duration_seconds",
            "Time from a request to its end",
            metrics.duration.clone(),
        );
        metrics.register_gauges(&mut registry);
        metrics.registry = registry;
        metrics
    }

    fn register_gauges(&self, registry: &mut Registry) {
        registry.register("texts", "Texts by state: running or waiting", self.now.clone());
        registry.register("kv_pages", "Pages of keys and values by state: used or free", self.pages.clone());
        registry.register(
            "device_memory_bytes",
            "Memory of a device: live, reserved, peak, total",
            self.memory.clone(),
        );
        registry.register(
            "step_seconds",
            "Recent time of a step by the number of texts in it, or in turns with it",
            self.steps.clone(),
        );
        registry.register("step_launches", "Launches per step", self.launches.clone());
    }

    /// Returns the metrics of a model.
    pub fn of(&self, model: &str) -> OfModel {
        let labels = vec![("model", model.to_owned())];
        OfModel {
            generated: self.generated.get_or_create(&labels).clone(),
            prompt_tokens: self.prompt.get_or_create(&labels).clone(),
            cached_tokens: self.cached.get_or_create(&labels).clone(),
            cancelled: self.cancelled.get_or_create(&labels).clone(),
            errors: self.errors.get_or_create(&labels).clone(),
            batch: self.batch.get_or_create(&labels).clone(),
            first: self.first.get_or_create(&labels).clone(),
            between: self.between.get_or_create(&labels).clone(),
            duration: self.duration.get_or_create(&labels).clone(),
        }
    }

    /// Counts an answered request.
    pub fn request(&self, route: &str, status: u16) {
        let labels = vec![("route", route.to_owned()), ("status", status.to_string())];
        self.requests.get_or_create(&labels).inc();
        self.answered.inc();
    }

    /// Returns the number of HTTP requests so far.
    pub fn answered(&self) -> u64 {
        self.answered.get()
    }

    /// Returns the text in Prometheus format.
    pub fn text(&self, busy: &[ModelLoad], memory: &[(String, [(&'static str, u64); 4])]) -> String {
        let set = |family: &Family<Labels, Gauge>, labels: Labels, value: u64| {
            family.get_or_create(&labels).set(i64::try_from(value).unwrap_or(i64::MAX));
        };
        self.now.clear();
        self.pages.clear();
        self.steps.clear();
        self.launches.clear();
        for one in busy {
            for cost in &one.costs {
                let way = if cost.in_turns { "in_turns" } else { "together" };
                let labels = vec![
                    ("model", one.model.clone()),
                    ("texts", cost.texts.to_string()),
                    ("way", way.to_owned()),
                ];
                self.steps.get_or_create(&labels).set(cost.seconds);
                if let Some(launches) = cost.launches {
                    set(&self.launches, labels, launches as u64);
                }
            }
            let labels = |state: &str| vec![("model", one.model.clone()), ("state", state.to_owned())];
            set(&self.now, labels("running"), one.running as u64);
            set(&self.now, labels("waiting"), one.waiting as u64);
            set(&self.pages, labels("used"), one.used as u64);
            set(&self.pages, labels("free"), one.pages.saturating_sub(one.used) as u64);
        }
        for (device, kinds) in memory {
            for (kind, bytes) in kinds {
                let labels = vec![("device", device.clone()), ("kind", (*kind).to_owned())];
                set(&self.memory, labels, *bytes);
            }
        }
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    /// Returns the total tokens of prompts and answers of these models, and the recent rates per second.
    pub fn tokens(&self, models: &[OfModel]) -> ([u64; 2], [f64; 2]) {
        let sum = |of: fn(&OfModel) -> u64| models.iter().map(of).sum::<u64>();
        let totals = [sum(|m| m.prompt_tokens.get()), sum(|m| m.generated.get())];
        let now = Instant::now();
        let mut last = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let rates = match *last {
            // Two pages that ask at the same time see the same rates.
            Some((then, _, rates)) if now.duration_since(then).as_secs_f64() < 0.5 => return (totals, rates),
            Some((then, before, _)) => {
                let seconds = now.duration_since(then).as_secs_f64();
                [0, 1].map(|at| totals[at].saturating_sub(before[at]) as f64 / seconds)
            }
            None => [0.0; 2],
        };
        *last = Some((now, totals, rates));
        (totals, rates)
    }

    /// Returns the number of canceled and of failed sequences.
    pub fn cancelled_and_failed(models: &[OfModel]) -> [u64; 2] {
        let sum = |of: fn(&OfModel) -> u64| models.iter().map(of).sum::<u64>();
        [sum(|m| m.cancelled.get()), sum(|m| m.errors.get())]
    }
}

impl OfModel {
    /// Counts the tokens of a step for a sequence that was requested at `began` and had its last token at `last`.
    pub fn count(&self, piece: &NewTokens, began: Instant, last: &mut Option<Instant>, now: Instant) {
        let tokens = piece.tokens.len();
        self.generated.inc_by(tokens as u64);
        let mut following = tokens;
        if tokens > 0 && last.is_none() {
            self.first.observe(now.duration_since(began).as_secs_f64());
            following -= 1;
        }
        if let Some(last) = last.filter(|_| following > 0) {
            // A run of steps returns several tokens at once.
            let each = now.duration_since(last).as_secs_f64() / following as f64;
            (0..following).for_each(|_| self.between.observe(each));
        }
        if tokens > 0 {
            *last = Some(now);
        }
        match &piece.end {
            Some(SequenceEnd::Done(finish, usage)) if *finish != Finish::Stopped => {
                self.prompt_tokens.inc_by(usage.prompt as u64);
                self.cached_tokens.inc_by(usage.reused as u64);
                self.duration.observe(now.duration_since(began).as_secs_f64());
            }
            Some(SequenceEnd::Failed(_)) => drop(self.errors.inc()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl::llm::engine::Usage;
    use std::time::Duration;

    #[test]
    fn what_is_counted_is_told() {
        let metrics = Metrics::new();
        let (model, began) = (metrics.of("a"), Instant::now());
        let token = || crate::piece::Token { id: 1, logprobs: None };
        let mut last = None;
        let piece = NewTokens { choice: 0, tokens: vec![token()], text: String::new(), end: None };
        model.count(&piece, began, &mut last, began + Duration::from_millis(20));
        let usage = Usage { prompt: 7, reused: 4, ..Usage::default() };
        let end = Some(SequenceEnd::Done(Finish::Length, usage));
        let piece = NewTokens { choice: 0, tokens: vec![token(), token()], text: String::new(), end };
        model.count(&piece, began, &mut last, began + Duration::from_millis(30));
        metrics.request("/v1/models", 200);
        let cost = StepCost { texts: 2, in_turns: false, runs: 9, seconds: 0.25, launches: Some(3) };
        let busy =
            ModelLoad { model: "a".into(), running: 2, waiting: 1, used: 3, pages: 9, costs: vec![cost] };
        let text = metrics
            .text(&[busy], &[("sim".into(), [("live", 5), ("reserved", 6), ("peak", 7), ("total", 8)])]);
        for line in [
            "netcl_generated_tokens_total{model=\"a\"} 3",
            "netcl_prompt_tokens_total{model=\"a\"} 7",
            "netcl_prompt_tokens_cached_total{model=\"a\"} 4",
            "netcl_time_to_first_token_seconds_count{model=\"a\"} 1",
            "netcl_time_between_tokens_seconds_count{model=\"a\"} 2",
            "netcl_requests_total{route=\"/v1/models\",status=\"200\"} 1",
            "netcl_texts{model=\"a\",state=\"waiting\"} 1",
            "netcl_kv_pages{model=\"a\",state=\"free\"} 6",
            "netcl_step_seconds{model=\"a\",texts=\"2\",way=\"together\"} 0.25",
            "netcl_step_launches{model=\"a\",texts=\"2\",way=\"together\"} 3",
            "netcl_device_memory_bytes{device=\"sim\",kind=\"peak\"} 7",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert_eq!(metrics.tokens(&[model]).0, [7, 3]);
    }
}
