//! Records of a run in its folder: metrics of each step, and the report page.

use super::texts::Texts;
use crate::run::StepMetrics;
use crate::run::report::{KernelTime, Report};
use crate::train::training::{Sharding, StepResults, Training};
use netcl_device::human;
use netcl_tensor::Result;
use std::time::{SystemTime, UNIX_EPOCH};

/// Number of steps after which the speed is stable.
const WARMUP_STEPS: u64 = 20;

impl Texts {
    /// Returns the metrics of a step, without validation loss and sample.
    pub(super) fn metrics(
        &mut self,
        training: &mut Training<StepMetrics>,
        done: &StepResults<'_>,
    ) -> Result<StepMetrics> {
        let norm = done.norm()?;
        let speed = self.clock.step(done.at, self.config.tokens_a_step());
        let flops = self.model.flops(1, self.config.context) * speed;
        let preference = self.comparison.as_ref();
        let preference =
            preference.map(|comparison| comparison.of_step(done.step.saturating_sub(1), done.done));
        Ok(StepMetrics {
            preference: preference.transpose()?,
            step: done.step,
            time: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64()),
            elapsed: self.clock.elapsed,
            loss: done.loss,
            lr: done.lr,
            grad_norm: norm,
            tokens: self.clock.trained,
            tokens_per_s: speed,
            memory: self.model.params().device().memory().peak as u64,
            flops: Some(flops),
            peak_share: self.peak_share(training, flops),
            trained_tokens: self.loader.step_targets(self.config.seed, done.step.saturating_sub(1)),
            ..StepMetrics::default()
        })
    }

    /// Returns the share of the device's peak; `None` if the measured peak is too low, which happens on a busy machine.
    fn peak_share(&self, training: &mut Training<StepMetrics>, flops: f64) -> Option<f64> {
        let share = share_of_peak(flops, self.peak_flops);
        if share.is_none()
            && self.peak_flops > 0.0
            && training.progress.step > WARMUP_STEPS
            && training.report.is_first("a share of the peak")
        {
            tracing::info!(
                "training is faster than the matrix product that measured the device's peak: the machine was busy then, so no share of the peak is \
                 shown"
            );
        }
        share
    }

    /// Writes `report.html` and pending metrics.
    pub(super) fn tell(&self, training: &mut Training<StepMetrics>, status: &str) {
        if training.report.folder.follows() {
            return;
        }
        training.report.flush();
        let written = self.write_report(training, status);
        training.report.spare("report.html", written);
    }

    /// Returns how the state of the run is divided between ranks; `None` if each has all of it.
    pub(super) fn sharding(&self, training: &Training<StepMetrics>) -> Option<Sharding> {
        let (parallel, _) = training.ranks.parallel.as_ref().zip(training.ranks.zero.as_ref())?;
        let state = training.optimizer.state_bytes();
        Some(Sharding { stage: self.config.zero, state, ranks: parallel.size() })
    }

    /// Writes `report.html`.
    fn write_report(&self, training: &Training<StepMetrics>, status: &str) -> Result<()> {
        let device = &training.device;
        let capabilities = device.capabilities();
        let memory = device.memory();
        let row = |name: &str, value: String| (name.to_string(), value);
        let m = self.model.config();
        let model = vec![
            row("parameters", self.parameters(&training.ranks).to_string()),
            row("family", m.family.model_type.to_string()),
            row("layers, heads, width", format!("{}, {}, {}", m.layers, m.attention.heads, m.width)),
            row("context", m.context.to_string()),
            row("vocabulary", m.vocab.to_string()),
            row("storage", self.model.params().dtype().to_string()),
        ];
        let machine = vec![
            row("device", format!("{} ({})", capabilities.name, capabilities.id)),
            row("platform", capabilities.platform_version.clone()),
            row("driver", capabilities.driver_version.clone()),
            row("measured peak", format!("{:.1} GFLOP/s", self.peak_flops / 1e9)),
            row("memory, peak", human(memory.peak as u64)),
            row("memory, reserved", human(memory.reserved as u64)),
        ];
        let ranks = training
            .ranks
            .times()
            .iter()
            .enumerate()
            .map(|(i, rank)| row(&format!("rank {i}, {}", rank.device), rank.line()))
            .collect();
        let mut ranks: Vec<(String, String)> = ranks;
        ranks.extend(self.sharding(training).map(|sharding| row("divided", sharding.line())));
        let config = self.config.to_toml()?;
        let settings =
            config.lines().filter_map(|l| l.split_once(" = ")).map(|(k, v)| row(k, v.into())).collect();
        let kernels: Vec<KernelTime> = training
            .report
            .kernels
            .iter()
            .map(|k| KernelTime { name: k.name.clone(), launches: k.count, seconds: k.seconds })
            .collect();
        let title = training.report.folder.path().file_name().map_or("run".into(), |n| n.to_string_lossy());
        let report = Report {
            title: &title,
            status,
            balanced: m.mlp.moe.is_some_and(|moe| moe.balance),
            metrics: &training.report.history,
            kernels: &kernels,
            tables: &[("Model", model), ("Device", machine), ("Ranks", ranks), ("Configuration", settings)],
        };
        training.report.folder.report(&report).map(|_| ())
    }
}

/// Returns `flops` as a share of the device's `peak` operations per second. `None` if the peak is unknown, or was measured on a busy machine and is
/// below what training reached.
fn share_of_peak(flops: f64, peak: f64) -> Option<f64> {
    (peak > 0.0).then(|| flops / peak).filter(|share| *share <= 1.0)
}

#[cfg(test)]
mod tests {
    use super::share_of_peak;

    #[test]
    fn training_is_never_above_the_peak() {
        assert_eq!(share_of_peak(50.0, 200.0), Some(0.25));
        assert_eq!(share_of_peak(143.0, 100.0), None);
        assert_eq!(share_of_peak(50.0, 0.0), None);
        assert_eq!(share_of_peak(f64::NAN, 100.0), None);
    }
}
