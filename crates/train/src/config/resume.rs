//! Changes that a resumed run may make, according to the table of settings.

use super::setting::{Change, TaskKind};
use super::value::flag;
use super::{SETTINGS, TrainConfig};
use netcl_device::{Error, Result, quote_path};
use std::path::Path;

/// Returns the keys of the settings of a task, with what a resumed run may do with them, in the order of reports.
pub fn resume_rules(task: TaskKind) -> Vec<(&'static str, Change)> {
    let of = |change: Change| SETTINGS.iter().filter(move |row| row.resume(task) == Some(change));
    Change::ALL.into_iter().flat_map(|change| of(change).map(move |row| (row.name, change))).collect()
}

/// Descriptions of the changes, and whether the data changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// A sentence for each changed setting.
    pub notes: Vec<String>,
    /// A sentence about a change of the learning rate, if any.
    pub rate: Option<String>,
    /// Whether data was added; validation losses are then not comparable with earlier ones.
    pub data: bool,
}

impl Changes {
    /// Adds a description of how the files of `--data` changed since the checkpoint.
    pub fn data_since(&mut self, said: Option<String>) {
        let Some(said) = said else { return };
        if !self.data {
            // A warning, because the user did not request the change.
            tracing::warn!("the data differs from that at the checkpoint: {said}");
        }
        self.data = true;
        self.notes.push(format!("data: {said}"));
    }
}

/// Differences between the settings of a run and the requested settings.
#[derive(Debug, Default)]
pub(crate) struct Differences {
    /// A sentence for each setting that must not change.
    pub refused: Vec<String>,
    /// A sentence for each other setting.
    pub notes: Vec<String>,
    /// Whether a setting of the learning rate differs.
    pub rate: bool,
    /// Whether a setting to which entries may be added differs.
    pub added: bool,
}

impl Differences {
    /// Compares the keys of `rules`, in their order; `same` returns whether differently written values mean the same.
    pub fn between(
        stored: &toml::Table,
        given: &toml::Table,
        rules: &[(&str, Change)],
        same: impl Fn(&str) -> bool,
    ) -> Self {
        let mut found = Self::default();
        for (key, change) in rules {
            let (old, new) = (stored.get(*key), given.get(*key));
            if old == new || same(key) {
                continue;
            }
            let word = |value: Option<&toml::Value>| value.map_or("unset".into(), ToString::to_string);
            let (old, new, flag) = (word(old), word(new), flag(key));
            match change {
                Change::Fixed => found.refused.push(format!("--{flag} {new}, the run has {old}")),
                Change::Added => found.added = true,
                Change::Free | Change::Rate => {}
            }
            found.rate |= *change == Change::Rate;
            if *change != Change::Fixed {
                found.notes.push(format!("{key} is {new}; it was {old}"));
            }
        }
        found
    }
}

impl TrainConfig {
    /// Returns the changes that `asked` makes to this run after `step` steps.
    ///
    /// # Errors
    /// `Format` with each setting that must not change, its stored and its given value.
    pub fn changes(&self, asked: &Self, step: u64) -> Result<Changes> {
        let (stored, given) = (self.table()?, asked.table()?);
        let same = |key: &str| match key {
            "tokenizer" => same_path(&self.tokenizer, &asked.tokenizer),
            "init" => self.init.as_deref().zip(asked.init.as_deref()).is_some_and(|(a, b)| same_path(a, b)),
            // The same files under other names are not a change.
            "data" => {
                !asked.data.iter().any(|new| left_out(new, &self.data))
                    && !self.data.iter().any(|old| left_out(old, &asked.data))
            }
            _ => false,
        };
        let found = Differences::between(&stored, &given, &resume_rules(TaskKind::Text), same);
        if let Some(old) = self.data.iter().find(|old| left_out(old, &asked.data)) {
            let all: Vec<_> =
                self.data.iter().chain(&asked.data).map(|data| quote_path(data.as_ref())).collect();
            return Err(Error::format(format!(
                "--data leaves out {old}, which the run learns from; only additions are allowed: --data {}. To learn from other data, start another \
                 run",
                all.join(" ")
            )));
        }
        let refused = found.refused;
        if !refused.is_empty() {
            return Err(Error::format(format!(
                "a resumed run keeps its model, tokenizer, optimizer, split and seed: {}. Omit that, or start another run with --out",
                refused.join("; ")
            )));
        }
        if asked.steps < step {
            return Err(Error::format(format!(
                "--steps {} is below the {step} steps that are done; --steps includes the steps before the run was resumed",
                asked.steps
            )));
        }
        let rate = found.rate.then(|| self.rate_change(asked, step));
        Ok(Changes { notes: found.notes, rate, data: found.added })
    }

    fn table(&self) -> Result<toml::Table> {
        toml::Table::try_from(self)
            .map_err(|e| Error::internal(format!("cannot convert the settings to a table: {e}")))
    }

    /// Describes the change of the learning rate at `step`, the next one.
    fn rate_change(&self, asked: &Self, step: u64) -> String {
        let rates = (self.learning_rate().at(step), asked.learning_rate().at(step));
        let said = rate_change(step, rates, (self.steps, asked.steps));
        if is_even(rates) {
            return said;
        }
        let old = rates.0;
        format!(
            "{said}. To continue at the same rate: --lr {old:.3e} --min-lr {old:.3e} --warmup 0 --schedule constant"
        )
    }
}

fn is_even((old, new): (f64, f64)) -> bool {
    (old - new).abs() <= 1e-9 * old.max(new)
}

/// Describes the change of the learning rate at `step`, the next one: old and new rate there, and old and new last step.
pub(crate) fn rate_change(step: u64, (old, new): (f64, f64), (old_end, new_end): (u64, u64)) -> String {
    let end = if old_end == new_end {
        String::new()
    } else {
        format!("; the schedule ends at step {new_end} instead of {old_end}")
    };
    if is_even((old, new)) {
        return format!("the learning rate stays at {new:.3e}{end}");
    }
    let times = if old > 0.0 && new > 0.0 {
        let factor = new / old;
        let (word, factor) = if factor > 1.0 { ("rises", factor) } else { ("falls", 1.0 / factor) };
        format!(", it {word} by a factor of {factor:.2}")
    } else {
        String::new()
    };
    format!(
        "the learning rate at step {} is {new:.3e}; with the stored settings it was {old:.3e}{times}{end}",
        step + 1
    )
}

/// Returns whether `entry` is not in `all` although the file it names still exists.
fn left_out(entry: &str, all: &[String]) -> bool {
    // Files that were moved or removed need not be given again; a pattern is not a file.
    let there = Path::new(entry).exists() || entry.contains(['*', '?', '[']);
    there && !all.iter().any(|other| same_path(entry, other))
}

fn same_path(a: &str, b: &str) -> bool {
    let real = |path: &str| std::fs::canonicalize(path).ok();
    a == b || real(a).is_some_and(|a| Some(a) == real(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Schedule;
    use netcl_tensor::DType;

    #[test]
    fn what_a_run_keeps_is_refused_by_name_with_both_values() {
        let stored = TrainConfig::preset("demo").unwrap();
        type Setting = fn(&mut TrainConfig);
        let changes: [(Setting, &str); 9] = [
            (|c| c.layers = 3, "--layers 3, the run has 4"),
            (|c| c.heads = 8, "--heads 8, the run has 4"),
            (|c| c.width = 64, "--width 64, the run has 128"),
            (|c| c.context = 64, "--context 64, the run has 128"),
            (|c| c.vocab = Some(99), "--vocab 99, the run has unset"),
            (|c| c.tokenizer = "x.json".into(), "--tokenizer \"x.json\", the run has \"char\""),
            (|c| c.val_split = 0.5, "--val-split 0.5, the run has 0.1"),
            (|c| c.seed = 1, "--seed 1, the run has 1337"),
            (|c| c.dtype = DType::Bf16, "--dtype \"bf16\", the run has \"f32\""),
        ];
        for (change, part) in changes {
            let mut asked = stored.clone();
            change(&mut asked);
            let message = stored.changes(&asked, 0).unwrap_err().to_string();
            assert!(message.contains(part) && message.contains("--out"), "{message} lacks: {part}");
        }
        let fewer = TrainConfig { steps: 9, warmup: 0, ..stored.clone() };
        assert!(stored.changes(&fewer, 10).unwrap_err().message().contains("--steps 9 is below the 10"));
        assert_eq!(stored.changes(&stored, 10).unwrap(), Changes::default());
    }

    #[test]
    fn a_schedule_that_changes_says_what_the_rate_does() {
        let stored = TrainConfig { steps: 1000, warmup: 0, ..TrainConfig::preset("demo").unwrap() };
        let longer = TrainConfig { steps: 4000, batch: 3, ..stored.clone() };
        let changes = stored.changes(&longer, 1000).unwrap();
        assert_eq!(changes.notes, ["steps is 4000; it was 1000", "batch is 3; it was 12"]);
        let rate = changes.rate.unwrap();
        for part in [
            "at step 1001 is 8.681e-4",
            "was 1.000e-4",
            "rises by a factor of 8.68",
            "ends at step 4000 instead of 1000",
            "--lr 1.000e-4 --min-lr 1.000e-4 --warmup 0 --schedule constant",
        ] {
            assert!(rate.contains(part), "{rate} lacks: {part}");
        }
        let even = TrainConfig { lr: 1e-4, min_lr: 1e-4, schedule: Schedule::Constant, ..longer };
        assert!(
            stored
                .changes(&even, 1000)
                .unwrap()
                .rate
                .unwrap()
                .starts_with("the learning rate stays at 1.000e-4")
        );
    }

    #[test]
    fn data_is_added_or_moved_and_never_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(path("a.txt"), "a").unwrap();
        std::fs::write(path("b.txt"), "b").unwrap();
        let with =
            |data: &[String]| TrainConfig { data: data.into(), ..TrainConfig::preset("demo").unwrap() };
        let stored = with(&[path("a.txt")]);
        assert!(stored.changes(&with(&[path("a.txt"), path("b.txt")]), 0).unwrap().data);
        assert!(!stored.changes(&with(&[path("./a.txt")]), 0).unwrap().data);
        let message = stored.changes(&with(&[path("b.txt")]), 0).unwrap_err().to_string();
        assert!(message.contains("leaves out") && message.contains("a.txt"), "{message}");
        let spaced = stored.changes(&with(&[path("it's b.txt")]), 0).unwrap_err().to_string();
        let quoted = format!("--data {} '{}'", path("a.txt"), path(r"it'\''s b.txt"));
        assert!(spaced.contains(&quoted), "{spaced} lacks: {quoted}");
        std::fs::rename(path("a.txt"), path("c.txt")).unwrap();
        assert!(stored.changes(&with(&[path("c.txt")]), 0).unwrap().data);
    }
}
