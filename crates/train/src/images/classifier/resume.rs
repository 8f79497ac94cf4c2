//! Changes that a resumed run of a classifier may make, according to the table of settings.

use super::config::own_key;
use super::{ClassifierConfig, SETTINGS};
use crate::config::{self, Change, Changes, Differences, TaskKind, rate_change};
use crate::schedule::{LearningRate, Schedule};
use netcl_device::{Error, Result};

/// Returns all keys of a classifier's `config.toml`, in the order of reports. Images may be in another folder, but must be the same.
pub fn resume_rules() -> Vec<(&'static str, Change)> {
    let all = SETTINGS.iter().chain(config::SETTINGS);
    let mut rules: Vec<_> =
        all.filter_map(|row| Some((own_key(row.name), row.resume(TaskKind::Images)?))).collect();
    rules.sort_by_key(|(_, change)| Change::ALL.iter().position(|other| other == change));
    rules
}

impl ClassifierConfig {
    /// Returns the learning rates of a run with this number of steps per epoch: a warm-up of a twentieth of all steps, then a cosine.
    pub(super) fn learning_rate(&self, of_epoch: u64) -> LearningRate {
        let decay = of_epoch.saturating_mul(self.epochs);
        let (lr, min_lr, warmup) = (self.lr, self.min_lr, decay / 20);
        LearningRate { schedule: Schedule::Cosine, lr, min_lr, warmup, decay }
    }

    /// Returns the changes that `asked` makes to this run after `step` steps; an epoch has `of_epoch` steps.
    ///
    /// # Errors
    /// `Format` with each setting that must not change, its stored and its given value.
    pub(super) fn changes(&self, asked: &Self, step: u64, of_epoch: u64) -> Result<Changes> {
        let table = |config: &Self| {
            toml::Table::try_from(config)
                .map_err(|e| Error::internal(format!("cannot convert the settings to a table: {e}")))
        };
        let found = Differences::between(&table(self)?, &table(asked)?, &resume_rules(), |_| false);
        if !found.refused.is_empty() {
            return Err(Error::format(format!(
                "a resumed run keeps its network, batch, split and seed: {}. Omit that, or start another run with --out",
                found.refused.join("; ")
            )));
        }
        let (old, new) = (self.learning_rate(of_epoch), asked.learning_rate(of_epoch));
        if new.decay < step {
            return Err(Error::format(format!(
                "--epochs {} is below the {} epochs that are done; --epochs includes the epochs before the run was resumed",
                asked.epochs,
                step.div_ceil(of_epoch.max(1))
            )));
        }
        let rate =
            found.rate.then(|| rate_change(step, (old.at(step), new.at(step)), (old.decay, new.decay)));
        Ok(Changes { notes: found.notes, rate, data: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_key_once() {
        let config = ClassifierConfig::preset("mnist-cnn").unwrap();
        let table = toml::Table::try_from(&config).unwrap();
        let mut listed: Vec<_> = resume_rules().into_iter().map(|(key, _)| key).collect();
        listed.sort_unstable();
        let mut keys: Vec<_> = table.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(listed, keys);
    }

    #[test]
    fn what_a_run_keeps_is_refused_and_the_rest_is_said() {
        let stored = ClassifierConfig::preset("mnist-cnn").unwrap();
        let asked = ClassifierConfig { batch: 32, seed: 1, ..stored.clone() };
        let message = stored.changes(&asked, 5, 10).unwrap_err().to_string();
        for part in ["--batch 32, the run has 64", "--seed 1, the run has 1337", "--out"] {
            assert!(message.contains(part), "{message} lacks: {part}");
        }
        let asked = ClassifierConfig { epochs: 20, keep: 3, ..stored.clone() };
        let changes = stored.changes(&asked, 50, 10).unwrap();
        assert_eq!(changes.notes, ["epochs is 20; it was 10", "keep is 3; it was 2"]);
        let rate = changes.rate.unwrap();
        assert!(rate.contains("at step 51 is") && rate.contains("ends at step 200 instead of 100"), "{rate}");
        let fewer = ClassifierConfig { epochs: 4, ..stored.clone() };
        let message = stored.changes(&fewer, 41, 10).unwrap_err().to_string();
        assert!(message.contains("--epochs 4 is below the 5 epochs that are done"), "{message}");
        assert_eq!(stored.changes(&stored, 50, 10).unwrap(), Changes::default());
    }
}
