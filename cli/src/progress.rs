//! What a person sees of a run: one live line on a terminal, plain lines elsewhere.

use crate::context::Context;
use crate::out;
use crate::profile::Costs;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use netcl::device::{counted, human};
use netcl::kernel::ceiling::Ceilings;
use netcl::nn::run::StepMetrics;
use netcl::nn::train::{Observer, Outcome, Profile, RunInfo, Trainer};
use netcl::prelude::*;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Seconds between lines where there is no terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// Draws a run on stderr; the summary goes to stdout.
pub struct Progress<'a> {
    context: &'a Context,
    json: bool,
    bar: Option<ProgressBar>,
    info: Option<RunInfo>,
    last: Option<StepMetrics>,
    val: Option<(f64, u64)>,
    sample: Option<String>,
    printed: Instant,
    began: Instant,
    first_step: Option<Duration>,
    /// Whether to show where the memory goes.
    explain_memory: bool,
    /// Tokens/s, smoothed for the eye.
    speed: f64,
    /// What a profile's kernels are compared with.
    ceilings: Option<Ceilings>,
}

impl<'a> Progress<'a> {
    /// `json` prints the summary as JSON; `explain_memory` shows where a step's memory goes.
    pub fn new(context: &'a Context, json: bool, explain_memory: bool) -> Self {
        let now = Instant::now();
        Self {
            context,
            json,
            bar: None,
            info: None,
            last: None,
            val: None,
            sample: None,
            printed: now,
            began: now,
            first_step: None,
            explain_memory,
            speed: 0.0,
            ceilings: None,
        }
    }

    /// What the kernels of a profile are compared with.
    pub fn compare_with(&mut self, ceilings: Option<Ceilings>) {
        self.ceilings = ceilings;
    }

    fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| out::note(line)),
            None => out::note(line),
        }
    }

    fn line(&self, m: &StepMetrics) -> String {
        let val = self.val.map_or(String::new(), |(loss, _)| format!("  val {loss:.4}"));
        let share = m.peak_share.map_or(String::new(), |s| format!("  {:.0}% of peak", s * 100.0));
        format!("loss {:.4}{val}  {:.0} tok/s{share}", m.loss, self.speed)
    }

    /// Ends the display and prints the summary.
    pub fn finish(&mut self, outcome: Outcome, trainer: &Trainer) -> Result<()> {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        let Some(info) = &self.info else { return Ok(()) };
        if self.json {
            // `null` for a run that ends within its first step.
            let loss = self.last.as_ref().map(|m| m.loss);
            let summary = serde_json::json!({
                "run": info.folder,
                "outcome": match outcome { Outcome::Finished => "finished", Outcome::Stopped => "stopped" },
                "steps": trainer.step(),
                "loss": loss,
                "val_loss": self.val.map(|(loss, _)| loss),
                "tokens_per_s": self.speed,
                "memory_peak": trainer.model().params().device().memory().peak,
                "parameters": info.parameters,
                "device": info.device,
                "first_step_s": self.first_step.map(|d| d.as_secs_f64()),
                "seconds": self.began.elapsed().as_secs_f64(),
                "sample": self.sample,
            });
            return out::result(&summary.to_string());
        }
        let val = self
            .val
            .map_or(String::new(), |(loss, step)| format!(", validation loss {loss:.4} at step {step}"));
        if let Some(sample) = &self.sample {
            out::result(sample.trim_end())?;
            out::result("")?;
        }
        let verb = if outcome == Outcome::Finished { "finished" } else { "stopped" };
        // A run that ends within its first step has no loss.
        let loss = self.last.as_ref().map_or(String::new(), |m| format!(": loss {:.4}", m.loss));
        out::result(&format!("{verb} after {}{loss}{val}", counted(trainer.step(), "step")))?;
        let memory = trainer.model().params().device().memory();
        out::note(&format!("at most {} of device memory in use", human(memory.peak as u64)));
        out::result(&format!("run folder: {} (open report.html there)", info.folder.display()))?;
        let folder = info.folder.display();
        out::result(&match outcome {
            Outcome::Finished => format!("sample more with: netcl generate -m {folder} -p \"...\""),
            Outcome::Stopped => format!("go on with: netcl train --resume {folder}"),
        })
    }
}

impl Observer for Progress<'_> {
    fn started(&mut self, info: &RunInfo) {
        let again =
            if info.from_step > 0 { format!(", from step {}", info.from_step) } else { String::new() };
        out::note(&format!(
            "{} parameters, vocabulary {}, {} training and {} validation tokens\ndevice {}, {:.0} GFLOP/s in a matrix product\nrun folder {}{again}",
            info.parameters,
            info.vocab,
            info.tokens[0],
            info.tokens[1],
            info.device,
            info.peak_flops / 1e9,
            info.folder.display()
        ));
        if self.context.live() {
            let bar = ProgressBar::with_draw_target(Some(info.steps), ProgressDrawTarget::stderr_with_hz(8));
            let template = "{bar:24} step {pos}/{len}  {msg}  ETA {eta}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("━╸ "));
            }
            bar.set_position(info.from_step);
            bar.reset_eta();
            self.bar = Some(bar);
        }
        self.info = Some(info.clone());
    }

    fn step(&mut self, m: &StepMetrics) {
        self.first_step.get_or_insert_with(|| self.began.elapsed());
        self.speed = if self.speed == 0.0 { m.tokens_per_s } else { 0.9 * self.speed + 0.1 * m.tokens_per_s };
        let line = self.line(m);
        match &self.bar {
            Some(bar) => {
                bar.set_position(m.step);
                bar.set_message(line);
            }
            None => {
                let steps = self.info.as_ref().map_or(0, |i| i.steps);
                if self.last.is_none() || m.step == steps || self.printed.elapsed() >= PLAIN_EVERY {
                    self.printed = Instant::now();
                    let left = (steps - m.step.min(steps)) as f64 * m.elapsed / m.step.max(1) as f64;
                    out::note(&format!("step {}/{steps}  {line}  ETA {left:.0}s", m.step));
                }
            }
        }
        self.last = Some(m.clone());
    }

    fn evaluated(&mut self, step: u64, loss: f64, best: bool) {
        self.val = Some((loss, step));
        self.say(&format!(
            "step {step}: validation loss {loss:.4}{}",
            if best { " (best so far)" } else { "" }
        ));
    }

    fn sample(&mut self, step: u64, text: &str) {
        self.say(&format!("step {step}: sample\n  {}", text.trim().replace('\n', "\n  ")));
        self.sample = Some(text.into());
    }

    fn saved(&mut self, step: u64, path: &Path) {
        let short: PathBuf = path.file_name().map_or_else(|| path.into(), PathBuf::from);
        tracing::debug!("step {step}: checkpoint {}", short.display());
    }

    fn memory_explained(&mut self, text: &str) {
        if self.explain_memory {
            self.say(text.trim_end());
        }
    }

    fn profiled(&mut self, profile: &Profile) {
        let (first, last) = profile.steps;
        let costs = Costs { kernels: &profile.kernels, steps: last + 1 - first, ceilings: self.ceilings };
        let replayed = if profile.replayed { ", replayed from a graph" } else { "" };
        self.say(&format!(
            "profile of steps {first} to {last}{replayed}\n{}\ntrace: {} (ui.perfetto.dev opens it; clocks agree within {:.1} µs)",
            costs.lines().join("\n"),
            profile.file.display(),
            profile.timeline.clock_error_ns as f64 * 1e-3
        ));
    }

    fn should_stop(&mut self) -> bool {
        self.context.interrupted()
    }

    fn should_stop_within_step(&mut self) -> bool {
        self.context.interrupted()
    }
}
