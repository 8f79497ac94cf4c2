//! Learning rate schedules: functions of only the step number, in f64, so a resumed run needs no other state.

use netcl_device::{Error, Result};
use netcl_model::names::{by_name, name_of};
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;
use std::{fmt, str::FromStr};

/// Learning rate schedule after warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// Constant `lr`.
    Constant,
    /// Linear decay to `min_lr`.
    Linear,
    /// Cosine decay to `min_lr`.
    Cosine,
}

impl Schedule {
    /// All values, with their names.
    pub const NAMES: [(&str, Self); 3] =
        [("constant", Self::Constant), ("linear", Self::Linear), ("cosine", Self::Cosine)];
}

impl FromStr for Schedule {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        by_name("schedule", name, &Self::NAMES)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(*self, &Self::NAMES))
    }
}

/// A learning rate schedule with nanoGPT's formulas: linear warm-up from `lr / (warmup + 1)`, then the decay, then constant `min_lr`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRate {
    /// Kind of decay after the warm-up.
    pub schedule: Schedule,
    /// Highest learning rate.
    pub lr: f64,
    /// Learning rate from step `decay` on; unused by a constant schedule.
    pub min_lr: f64,
    /// Warm-up steps.
    pub warmup: u64,
    /// The step at which `min_lr` is reached.
    pub decay: u64,
}

impl LearningRate {
    /// Returns the learning rate of step `step`, counted from 0.
    pub fn at(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.lr * (step + 1) as f64 / (self.warmup + 1) as f64;
        }
        let left = match self.schedule {
            Schedule::Constant => return self.lr,
            _ if step >= self.decay => return self.min_lr,
            Schedule::Linear => 1.0 - self.progress(step),
            Schedule::Cosine => 0.5 * (1.0 + (PI * self.progress(step)).cos()),
        };
        self.min_lr + left * (self.lr - self.min_lr)
    }

    /// Returns the progress from 0 at the end of warm-up to 1 at `decay`.
    fn progress(&self, step: u64) -> f64 {
        (step - self.warmup) as f64 / (self.decay - self.warmup) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::SafeTensors;
    use serde_json::Value;
    use std::path::Path;

    /// Every case of the goldens. The warm-up of cases made with PyTorch's `LambdaLR` is `step / warmup`, netcl's is `(step + 1) / (warmup + 1)`.
    /// After `decay` their cosine rises again, while netcl's stays constant.
    #[test]
    fn learning_rates_are_those_of_nanogpt_and_pytorch() {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../tensor/tests/goldens/schedules.safetensors");
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let cases = header.metadata().clone().unwrap();
        assert_eq!(cases.len(), 8);
        for (name, case) in cases {
            let case: Value = serde_json::from_str(&case).unwrap();
            let whole = |key: &str| case[key].as_u64().unwrap();
            let rate = LearningRate {
                schedule: case["schedule"].as_str().unwrap().parse().unwrap(),
                lr: case["lr"].as_f64().unwrap(),
                min_lr: case["min_lr"].as_f64().unwrap(),
                warmup: whole("warmup"),
                decay: whole("decay"),
            };
            let lambda = name.contains("lambda");
            let expected = file.tensor(&format!("{name}.out")).unwrap();
            let expected = expected.data().chunks_exact(8).map(|c| f64::from_le_bytes(c.try_into().unwrap()));
            for (step, mut expected) in (0u64..).zip(expected) {
                if lambda && step < rate.warmup {
                    expected = expected * rate.warmup as f64 / (rate.warmup + 1) as f64
                        + rate.lr / (rate.warmup + 1) as f64;
                }
                if lambda && rate.schedule == Schedule::Cosine && step > rate.decay {
                    expected = 0.0;
                }
                let got = rate.at(step);
                assert!((got - expected).abs() <= 1e-15, "{name} step {step}: {got}, expected {expected}");
            }
        }
    }

    #[test]
    fn the_last_step_has_the_lowest_rate() {
        use crate::config::TrainConfig;
        for (steps, warmup) in [(2, 0), (10, 3), (10, 9), (500, 20)] {
            for schedule in [Schedule::Cosine, Schedule::Linear] {
                let preset = TrainConfig::preset("finetune").unwrap();
                let rate = TrainConfig { steps, warmup, schedule, ..preset }.learning_rate();
                assert_eq!(
                    (rate.at(steps - 1), rate.at(steps)),
                    (rate.min_lr, rate.min_lr),
                    "{steps} {warmup}"
                );
                assert!(rate.at(steps - 2) > rate.min_lr, "{steps} {warmup}");
            }
        }
        let one = TrainConfig { steps: 1, warmup: 0, ..TrainConfig::preset("finetune").unwrap() };
        assert_eq!(one.learning_rate().at(0), one.lr);
    }

    #[test]
    fn ends_meet() {
        let rate = |schedule| LearningRate { schedule, lr: 1.0, min_lr: 0.1, warmup: 4, decay: 4 };
        for (_, schedule) in Schedule::NAMES {
            let after = if schedule == Schedule::Constant { 1.0 } else { 0.1 };
            assert_eq!([0, 3, 4, u64::MAX].map(|s| rate(schedule).at(s)), [0.2, 0.8, after, after]);
        }
    }
}
