//! `metrics.jsonl`: one JSON object per step, written before the next step.

use super::{append::Appender, replace};
use crate::evaluate::{PreferenceMetrics, Score};
use netcl_device::{Error, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use std::{
    fs::{File, OpenOptions},
    marker::PhantomData,
    path::Path,
};

/// A record of a run: a line of `metrics.jsonl`, and an event of TensorBoard.
pub trait Record: Serialize + DeserializeOwned {
    /// Returns the optimizer steps done; later records have more.
    fn step(&self) -> u64;
    /// Returns the time in seconds since 1970.
    fn time(&self) -> f64;
    /// Returns the numbers by their TensorBoard tags; `None` for numbers that were not measured.
    fn scalars(&self) -> Vec<(&'static str, Option<f64>)>;
    /// Returns a generated text.
    fn sample(&self) -> Option<&str> {
        None
    }
}

/// Metrics of a step. Non-finite numbers are `null` in the file and NaN when read back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepMetrics {
    /// Optimizer steps done, from 1 on.
    pub step: u64,
    /// Seconds since 1970.
    pub time: f64,
    /// Training time in seconds so far, over all sessions.
    pub elapsed: f64,
    /// Mean training loss of the step, in nats per token.
    #[serde(deserialize_with = "null_is_nan")]
    pub loss: f64,
    /// Validation loss, if it was measured after this step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub val_loss: Option<f64>,
    /// Validation perplexity: exp of that loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub val_perplexity: Option<f64>,
    /// Validation bits per byte, if the tokenizer's byte lengths are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub val_bits_per_byte: Option<f64>,
    /// Learning rate.
    #[serde(deserialize_with = "null_is_nan")]
    pub lr: f64,
    /// Global gradient norm before clipping.
    #[serde(default, deserialize_with = "null_is_nan")]
    pub grad_norm: f64,
    /// Tokens trained on so far.
    pub tokens: u64,
    /// Tokens per second over the latest steps; see [`SpeedWindow`](super::SpeedWindow).
    #[serde(deserialize_with = "null_is_nan")]
    pub tokens_per_s: f64,
    /// Peak of device memory in use so far, in bytes.
    pub memory: u64,
    /// Floating-point operations per second over the same steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops: Option<f64>,
    /// The same as a share of the device's measured peak, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_share: Option<f64>,
    /// Tokens of the step whose loss is trained, if not all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trained_tokens: Option<u64>,
    /// Rewards and log probabilities of the step, if answers are compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preference: Option<PreferenceMetrics>,
    /// The same of the validation records, if they were evaluated after this step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub val_preference: Option<PreferenceMetrics>,
    /// Generated sample, if one was due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<String>,
}

/// Tags of [`PreferenceMetrics::named`] for validation records.
const VALIDATION_TAGS: [&str; 8] = [
    "validation/rewards/chosen",
    "validation/rewards/rejected",
    "validation/rewards/accuracies",
    "validation/rewards/margins",
    "validation/logps/chosen",
    "validation/logps/rejected",
    "validation/kl",
    "validation/nll_loss",
];

impl StepMetrics {
    /// Adds a validation result.
    pub fn evaluated(&mut self, score: &Score) {
        self.val_loss = Some(score.loss());
        self.val_preference = score.preference;
        let is_text = score.preference.is_none();
        self.val_perplexity = Some(score.perplexity()).filter(|p| p.is_finite() && is_text);
        self.val_bits_per_byte = score.bits_per_byte();
    }
}

impl Record for StepMetrics {
    fn step(&self) -> u64 {
        self.step
    }
    fn time(&self) -> f64 {
        self.time
    }
    fn scalars(&self) -> Vec<(&'static str, Option<f64>)> {
        let train = self.preference.map(|found| found.named().to_vec()).unwrap_or_default();
        let val = self.val_preference.map(|found| found.named()).unwrap_or_default();
        let val = val.into_iter().zip(VALIDATION_TAGS).map(|((_, value), tag)| (tag, value));
        let common = [
            ("loss/train", Some(self.loss)),
            ("loss/validation", self.val_loss),
            ("perplexity/validation", self.val_perplexity),
            ("bits_per_byte/validation", self.val_bits_per_byte),
            ("optimizer/learning_rate", Some(self.lr)),
            ("optimizer/gradient_norm", Some(self.grad_norm)),
            ("speed/tokens_per_second", Some(self.tokens_per_s)),
            ("speed/flops", self.flops),
            ("speed/share_of_peak", self.peak_share),
            ("memory/peak_bytes", Some(self.memory as f64)),
            ("data/trained_tokens", self.trained_tokens.map(|n| n as f64)),
        ];
        common.into_iter().chain(train).chain(val).collect()
    }
    fn sample(&self) -> Option<&str> {
        self.sample.as_deref()
    }
}

fn null_is_nan<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<f64, D::Error> {
    Option::deserialize(deserializer).map(|value| value.unwrap_or(f64::NAN))
}

/// The open file.
#[derive(Debug)]
pub struct MetricsLog<M = StepMetrics>(Appender, PhantomData<fn(M)>);

impl<M: Record> MetricsLog<M> {
    /// Starts an empty log.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).map_err(|e| Error::io("creating", path, &e))?;
        Ok(Self(Appender::new(path, file)?, PhantomData))
    }

    /// Continues the log after `step`: removes later records, so that no step appears twice. Creates a missing log. Also returns the remaining
    /// records.
    pub fn resume(path: &Path, step: u64) -> Result<(Self, Vec<M>)> {
        if !path.exists() {
            return Ok((Self::create(path)?, Vec::new()));
        }
        let text = read(path)?;
        let lines: Vec<_> = kept(&text, step).collect();
        let cut: String = lines.iter().map(|(line, _)| format!("{line}\n")).collect();
        if cut != text {
            replace(path, cut.as_bytes())?;
        }
        let file = OpenOptions::new().append(true).open(path).map_err(|e| Error::io("opening", path, &e))?;
        Ok((
            Self(Appender::new(path, file)?, PhantomData),
            lines.into_iter().map(|(_, metrics)| metrics).collect(),
        ))
    }

    /// Appends a record.
    pub fn push(&mut self, metrics: &M) -> Result<()> {
        let mut line = serde_json::to_vec(metrics)
            .map_err(|e| Error::internal(format!("cannot convert metrics to JSON: {e}")))?;
        line.push(b'\n');
        self.0.push(&line)
    }

    /// Writes pending records.
    pub fn flush(&mut self) -> Result<()> {
        self.0.flush()
    }
}

/// Reads every record of a `metrics.jsonl`.
pub fn read_metrics<M: Record>(path: &Path) -> Result<Vec<M>> {
    Ok(kept(&read(path)?, u64::MAX).map(|(_, metrics)| metrics).collect())
}

/// Returns the content of the file; ignores invalid bytes left by a crash.
fn read(path: &Path) -> Result<String> {
    let bytes = netcl_device::files::read_whole(path).map_err(|e| Error::io("reading", path, &e))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns complete records up to step `last`, in increasing order of steps.
fn kept<M: Record>(text: &str, last: u64) -> impl Iterator<Item = (&str, M)> {
    let mut before = None;
    text.lines().filter_map(move |line| {
        let metrics: M = serde_json::from_str(line).ok()?;
        let step = metrics.step();
        let keep = step <= last && before.is_none_or(|before| step > before);
        keep.then(|| {
            before = Some(step);
            (line, metrics)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn step(step: u64) -> StepMetrics {
        StepMetrics {
            step,
            loss: 1.0 / step as f64,
            lr: 1e-3,
            sample: (step == 2).then(|| "a\n\"b".into()),
            ..Default::default()
        }
    }

    #[test]
    fn resuming_cuts_later_and_torn_steps() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut log = MetricsLog::create(&path).unwrap();
        (1..=5).for_each(|n| log.push(&step(n)).unwrap());
        let torn = fs::read_to_string(&path).unwrap() + "{\"step\":6,\"lo";
        fs::write(&path, torn).unwrap();
        let (mut log, kept) = MetricsLog::resume(&path, 3).unwrap();
        assert_eq!(kept, [step(1), step(2), step(3)]);
        (4..=6).for_each(|n| log.push(&step(n)).unwrap());
        assert_eq!(read_metrics::<StepMetrics>(&path).unwrap(), (1..=6).map(step).collect::<Vec<_>>());
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!((text.lines().count(), text.ends_with('\n')), (6, true));
        MetricsLog::<StepMetrics>::resume(&path, 6).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        let (_, none) = MetricsLog::<StepMetrics>::resume(&dir.path().join("new.jsonl"), 3).unwrap();
        assert!(none.is_empty());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_step_that_could_not_be_written_goes_before_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut log = MetricsLog::create(&path).unwrap();
        log.push(&step(1)).unwrap();
        // /dev/full simulates a full disk.
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let room = std::mem::replace(&mut log.0, Appender::new(Path::new("/dev/full"), full).unwrap());
        let message = log.push(&step(2)).unwrap_err().to_string();
        assert!(message.contains("/dev/full") && message.contains("No space left"), "{message}");
        assert!(log.flush().is_err());
        log.0.take_over(room);
        log.push(&step(3)).unwrap();
        assert_eq!(read_metrics::<StepMetrics>(&path).unwrap(), (1..=3).map(step).collect::<Vec<_>>());
        log.flush().unwrap();
    }

    #[test]
    fn numbers_survive_and_nan_is_null() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let odd = StepMetrics {
            loss: f64::NAN,
            lr: 0.1 + 0.2,
            grad_norm: f64::INFINITY,
            val_loss: Some(1.0 / 3.0),
            ..step(1)
        };
        MetricsLog::create(&path).unwrap().push(&odd).unwrap();
        assert!(fs::read_to_string(&path).unwrap().contains("\"loss\":null"));
        let read: &StepMetrics = &read_metrics(&path).unwrap()[0];
        assert!(read.loss.is_nan() && read.grad_norm.is_nan());
        assert_eq!((read.lr, read.val_loss, read.flops), (odd.lr, odd.val_loss, None));
        assert!(
            read_metrics::<StepMetrics>(&dir.path().join("none")).unwrap_err().message().contains("none")
        );
    }
}
