//! Progress of a run: one live line on a terminal, plain lines elsewhere.

use crate::context::Context;
use crate::out;
use crate::profile::summary;
use crate::shell;
use indicatif::{ProgressBar, ProgressDrawTarget};
use netcl::device::{counted, human};
use netcl::kernel::ceiling::Ceilings;
use netcl::prelude::*;
use netcl::train::config::TrainConfig;
use netcl::train::evaluate::Score;
use netcl::train::run::StepMetrics;
use netcl::train::{Observer, Outcome, Profile, RankTimes, RunInfo, Saving, Trainer};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval between lines if stderr is not a terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// Formats the progress of a checkpoint.
fn saving_line(saving: &Saving) -> String {
    let (written, total) = (saving.written.min(saving.total), saving.total);
    format!("writing the checkpoint of step {}: {} of {}", saving.step, human(written), human(total))
}

/// Reports a run that is already finished, and how to continue it. This is not a failure: the requested result exists.
pub fn already_finished(trainer: &Trainer, dir: &Path, json: bool) -> Result<()> {
    let (steps, last) = (trainer.step(), trainer.last_metrics());
    let loss = last.map(|m| m.loss);
    if json {
        let val = trainer.best().map(|(loss, _)| loss);
        let summary = serde_json::json!({
            "run": dir, "outcome": "finished", "already": true, "steps": steps, "loss": loss, "best_val_loss": val,
        });
        return out::result(&summary.to_string());
    }
    let loss = loss.map_or(String::new(), |loss| format!(", loss {loss:.4}"));
    let best = trainer
        .best()
        .map_or(String::new(), |(loss, step)| format!(", validation loss {loss:.4} at step {step}"));
    let name = dir.display();
    out::result(&format!("{name} is finished: all {steps} steps are done{loss}{best}; nothing was changed"))?;
    let (program, dir, more) = (shell::program(), shell::path(dir), steps.saturating_mul(2));
    out::result(&format!("train more steps with: {program} train --resume {dir} --steps {more}"))
}

/// The display of a run on stderr; the summary goes to stdout.
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
    /// Whether a signal requested the next checkpoint.
    asked: bool,
    /// Whether to print memory use.
    explain_memory: bool,
    /// The checkpoint being written, and when it started or was last reported.
    saving: Option<(Saving, Instant)>,
    /// Peak rates that a profile compares kernels with.
    ceilings: Option<Ceilings>,
    /// Steps between lines if stderr is not a terminal.
    log_every: Option<u64>,
}

impl<'a> Progress<'a> {
    /// Creates the display of a run with these settings. `json` prints the summary as JSON; `explain_memory` prints the memory use of a step.
    pub fn new(context: &'a Context, config: &TrainConfig, json: bool, explain_memory: bool) -> Self {
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
            asked: false,
            explain_memory,
            saving: None,
            ceilings: None,
            log_every: config.log_every,
        }
    }

    /// Sets the peak rates that a profile compares kernels with.
    pub fn compare_with(&mut self, ceilings: Option<Ceilings>) {
        self.ceilings = ceilings;
    }

    /// Reports why no table of memory was printed, if one was requested and the reason is known: at the start of the run, or at its `end`.
    pub fn explain_nothing(&mut self, trainer: &Trainer, end: bool) {
        if !self.explain_memory || !(end || trainer.is_eager()) {
            return;
        }
        if let Some(why) = trainer.why_memory_is_not_explained() {
            self.say(&format!("--explain-memory: no table, because {why}"));
            self.explain_memory = false;
        }
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
        let left = self.info.as_ref().map_or(0, |i| i.steps.saturating_sub(m.step));
        // The estimate uses tokens, because the speed does.
        let seconds = left as f64 * (m.tokens as f64 / m.step.max(1) as f64) / m.tokens_per_s;
        let eta = if seconds.is_finite() { format!("  ETA {}", human_time(seconds)) } else { String::new() };
        let saving = self.saving.map_or(String::new(), |(s, _)| {
            format!("  checkpoint {:.0}%", s.written as f64 / s.total.max(1) as f64 * 100.0)
        });
        let devices = self.info.as_ref().map_or(1, |info| info.ranks);
        let devices = if devices > 1 { format!(" on {devices} devices") } else { String::new() };
        let rewards = m.preference.map_or(String::new(), |found| format!("  {}", found.line()));
        format!("loss {:.4}{rewards}{val}  {:.0} tok/s{devices}{share}{saving}{eta}", m.loss, m.tokens_per_s)
    }

    /// Returns a command line that the user can run next.
    fn hint(&self, outcome: Outcome, trainer: &Trainer, folder: &Path) -> Option<String> {
        let (program, folder) = (shell::program(), shell::path(folder));
        let device = match trainer.config().device.as_str() {
            "auto" => String::new(),
            name => format!(" --device {}", shell::quote(name.as_ref())),
        };
        match (outcome, trainer.opening()) {
            (Outcome::Stopped, _) => Some(format!("resume with: {program} train --resume {folder}")),
            (Outcome::Finished, Some(prompt)) => {
                let prompt = shell::quote(prompt.as_ref());
                // With an equals sign, a prompt that starts with a dash is not taken for a flag.
                let flag = if prompt.starts_with('-') { "--prompt=" } else { "-p " };
                Some(format!("generate text with: {program} generate -m {folder} {flag}{prompt}{device}"))
            }
            (Outcome::Finished, None) => None,
        }
    }

    /// Ends the display of a failed run, and reports what remains of it.
    pub fn failed(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        let Some(info) = &self.info else { return };
        out::note(&format!(
            "run folder: {} (the record up to the failure is in report.html)",
            info.folder.display()
        ));
        if info.folder.join("checkpoints").join("last").exists() {
            let (program, folder) = (shell::program(), shell::path(&info.folder));
            out::note(&format!("resume from the last checkpoint with: {program} train --resume {folder}"));
        }
    }

    /// Ends the display and prints the summary.
    pub fn finish(&mut self, outcome: Outcome, trainer: &Trainer) -> Result<()> {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        self.explain_nothing(trainer, true);
        let Some(info) = &self.info else { return Ok(()) };
        if self.json {
            // `null` for a run that ends within its first step.
            let loss = self.last.as_ref().map(|m| m.loss);
            let ranks: Vec<_> = trainer.ranks().iter().map(rank_json).collect();
            let summary = serde_json::json!({
                "run": info.folder,
                "outcome": match outcome { Outcome::Finished => "finished", Outcome::Stopped => "stopped" },
                "steps": trainer.step(),
                "loss": loss,
                "val_loss": self.val.map(|(loss, _)| loss),
                "tokens_per_s": trainer.tokens_per_s(),
                "memory_peak": trainer.model().params().device().memory().peak,
                "parameters": info.parameters,
                "device": info.device,
                "devices": info.ranks,
                "ranks": ranks,
                "zero": trainer.sharding().map_or(0, |sharding| sharding.stage),
                "optimizer_state": trainer.optimizer_bytes(),
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
        // The loss is missing for a run that ends within its first step.
        let loss = self.last.as_ref().map_or(String::new(), |m| format!(": loss {:.4}", m.loss));
        out::result(&format!("{verb} after {}{loss}{val}", counted(trainer.step(), "step")))?;
        let memory = trainer.model().params().device().memory();
        out::note(&format!("peak device memory in use: {}", human(memory.peak as u64)));
        let speed = trainer.tokens_per_s();
        if speed.is_finite() {
            out::note(&format!("{speed:.0} tokens/s over all steps of this session"));
        }
        tell_ranks(trainer.ranks());
        if let Some(sharding) = trainer.sharding() {
            out::note(&sharding.line());
        }
        out::result(&format!("run folder: {} (open report.html there)", info.folder.display()))?;
        self.hint(outcome, trainer, &info.folder).map_or(Ok(()), |hint| out::result(&hint))
    }
}

/// Prints how each rank spent its time.
pub fn tell_ranks(ranks: &[RankTimes]) {
    for (i, rank) in ranks.iter().enumerate() {
        out::note(&format!("rank {i}, {}: {}", rank.device, rank.line()));
    }
}

/// Returns a rank's entry of the summary in JSON; numbers are `null` if too few steps were done.
pub fn rank_json(rank: &RankTimes) -> serde_json::Value {
    let mut all = serde_json::json!({
        "device": rank.device,
        "stage": rank.stage.as_ref().map(|stage| stage.stage),
        "layers": rank.stage.as_ref().map(|stage| [stage.layers.start, stage.layers.end]),
        "share": rank.share(),
        "waiting": rank.waiting_share(),
    });
    all[format!("{}_per_s", rank.unit)] = rank.speed().into();
    all
}

impl Observer for Progress<'_> {
    fn started(&mut self, info: &RunInfo) {
        let again =
            if info.from_step > 0 { format!(", from step {}", info.from_step) } else { String::new() };
        let padding = info.known.filter(|known| *known < info.vocab);
        let padding = padding.map_or(String::new(), |known| format!(" ({known} of the tokenizer, padded)"));
        let trained = match info.trained < info.parameters {
            true => format!(", {} of them trained", info.trained),
            false => String::new(),
        };
        out::note(&format!(
            "{} parameters{trained}, vocabulary {}{padding}, {} training and {} validation tokens\ndevice {}, {:.0} GFLOP/s in a matrix product\nrun folder {}{again}",
            info.parameters,
            info.vocab,
            info.tokens[0],
            info.tokens[1],
            info.device,
            info.peak_flops / 1e9,
            info.folder.display()
        ));
        if let Some(memory) = &info.memory {
            out::note(memory);
        }
        if self.context.live() {
            let bar = ProgressBar::with_draw_target(Some(info.steps), ProgressDrawTarget::stderr_with_hz(8));
            bar.set_style(out::style("{bar:24} step {pos}/{len}  {wide_msg}"));
            bar.set_position(info.from_step);
            self.bar = Some(bar);
        }
        self.info = Some(info.clone());
    }

    fn step(&mut self, m: &StepMetrics) {
        if self.first_step.is_none() {
            self.first_step = Some(self.began.elapsed());
            // Not earlier: LLVM, which PoCL uses to compile, installs its own handler for this signal in its first call.
            if let Err(e) = self.context.listen_for_saves() {
                tracing::warn!("SIGUSR1 cannot request a checkpoint: {e}");
            }
        }
        let line = self.line(m);
        match &self.bar {
            Some(bar) => {
                bar.set_position(m.step);
                bar.set_message(line);
            }
            None => {
                let steps = self.info.as_ref().map_or(0, |i| i.steps);
                let due = match self.log_every {
                    Some(every) => m.step.is_multiple_of(every),
                    None => self.printed.elapsed() >= PLAIN_EVERY,
                };
                if self.last.is_none() || m.step == steps || due {
                    self.printed = Instant::now();
                    out::note(&format!("step {}/{steps}  {line}", m.step));
                }
            }
        }
        self.last = Some(m.clone());
    }

    fn evaluated(&mut self, step: u64, score: &Score, best: bool) {
        self.val = Some((score.loss(), step));
        let bits = score.bits_per_byte().map_or(String::new(), |bits| format!(", {bits:.4} bits per byte"));
        let more = match score.preference {
            Some(found) => found.line(),
            None => format!("perplexity {}{bits}", perplexity(score.perplexity())),
        };
        let best = if best { " (best so far)" } else { "" };
        self.say(&format!("step {step}: validation loss {:.4}, {more}{best}", score.loss()));
    }

    fn sample(&mut self, step: u64, text: &str) {
        self.say(&format!("step {step}: sample\n  {}", text.trim().replace('\n', "\n  ")));
        self.sample = Some(text.into());
    }

    fn saving(&mut self, saving: &Saving) {
        if saving.waiting && self.saving.is_none_or(|(_, said)| said.elapsed() >= PLAIN_EVERY) {
            // A checkpoint is shown at once only if it takes noticeable time.
            let first = self.saving.is_none();
            self.saving = Some((*saving, Instant::now()));
            if !first {
                self.say(&saving_line(saving));
            }
        } else {
            let said = self.saving.map_or_else(Instant::now, |(_, said)| said);
            self.saving = Some((*saving, said));
        }
        if let (true, Some(bar)) = (saving.waiting, &self.bar) {
            bar.set_message(saving_line(saving));
        }
    }

    fn saved(&mut self, step: u64, path: &Path) {
        self.saving = None;
        let short: PathBuf = path.file_name().map_or_else(|| path.into(), PathBuf::from);
        match std::mem::take(&mut self.asked) {
            true => self.say(&format!("step {step}: checkpoint {}", path.display())),
            false => tracing::debug!("step {step}: checkpoint {}", short.display()),
        }
    }

    fn memory_explained(&mut self, text: &str) {
        if std::mem::take(&mut self.explain_memory) {
            self.say(text.trim_end());
        }
    }

    fn profiled(&mut self, profile: &Profile) {
        self.say(&summary(profile, self.ceilings));
    }

    fn should_save(&mut self) -> bool {
        let asked = self.context.take_save();
        self.asked |= asked;
        asked
    }

    fn should_stop(&mut self) -> bool {
        self.context.interrupted()
    }

    fn should_stop_within_step(&mut self) -> bool {
        self.context.interrupted()
    }
}

/// `4.151`, `1208`, `3.2e9`.
pub fn perplexity(value: f64) -> String {
    match value {
        v if v < 100.0 => format!("{v:.3}"),
        v if v < 1e6 => format!("{v:.0}"),
        v => format!("{v:.1e}"),
    }
}

/// `42s`, `3m 5s`, `2h 7m`, `3d 4h`.
fn human_time(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match (whole / 86_400, whole / 3600 % 24, whole / 60 % 60, whole % 60) {
        (0, 0, 0, s) => format!("{s}s"),
        (0, 0, m, s) => format!("{m}m {s}s"),
        (0, h, m, _) => format!("{h}h {m}m"),
        (d, h, ..) => format!("{d}d {h}h"),
    }
}
