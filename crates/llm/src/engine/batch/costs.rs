//! Cost of steps by batch size, and whether decoding sequences one by one is faster.

use std::collections::BTreeMap;

/// Runs of a batch size before its times are used.
const MIN_RUNS: usize = 4;

/// Out of this many runs, the first few batch all sequences even if one by one is faster, so that the comparison stays current.
const AGAIN: usize = 64;

/// Factor of the time of a batched step that one-by-one decoding must reach before it is tried.
const MIN_GAIN_FACTOR: f64 = 0.95;

/// Cost of a step with this many sequences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepCost {
    /// Number of sequences that advance by a token.
    pub texts: usize,
    /// Whether each step advances only one sequence, in turns.
    pub in_turns: bool,
    /// Number of measured runs.
    pub runs: usize,
    /// Seconds per step, averaged over the last runs, including the time that the device waits for the host.
    pub seconds: f64,
    /// Launches of a step including sampling; `None` before the step is captured.
    pub launches: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    /// Runs so far.
    runs: usize,
    /// Seconds from one run to the next, averaged over the last runs: if the host is late, one run seems to take longer and the next one shorter.
    step: f64,
}

impl Cost {
    fn add(&mut self, step: f64) {
        self.step = match self.runs {
            0 => step,
            // The first runs compile kernels.
            runs if runs < MIN_RUNS => self.step.min(step),
            // A much longer run was disturbed: by the compilation of another kernel, or by another program.
            _ => self.step + 0.125 * (step.min(2.0 * self.step) - self.step),
        };
        self.runs += 1;
    }

    fn known(&self) -> Option<f64> {
        (self.runs >= 2 * MIN_RUNS).then_some(self.step)
    }
}

/// Costs of an engine's steps.
#[derive(Default)]
pub(super) struct Costs {
    /// By number of sequences, all of them in each step.
    together: BTreeMap<usize, Cost>,
    /// By number of sequences, one of them in each step.
    in_turns: BTreeMap<usize, Cost>,
}

impl Costs {
    /// Records that a step of a run of `texts` sequences took this many seconds, with `all` active sequences. Returns the current average.
    pub fn add(&mut self, texts: usize, all: usize, seconds: f64) -> f64 {
        let in_turns = texts == 1 && all > 1;
        let cost = match in_turns {
            true => self.in_turns.entry(all).or_default(),
            false => self.together.entry(texts).or_default(),
        };
        cost.add(seconds);
        if cost.runs == 2 * MIN_RUNS {
            let micros = cost.step * 1e6;
            let way =
                if in_turns { format!("one of {all} texts in turns") } else { format!("{texts} together") };
            tracing::debug!("a step of decoding, {way}: {micros:.0} us");
        }
        cost.step
    }

    /// Returns true if stepping `texts` sequences one by one takes less time than one batched step: a device may have a faster kernel for one
    /// sequence. The estimate first uses the time of a single sequence, then measurements, because turns have separate uploads.
    pub fn is_faster_one_by_one(&self, texts: usize, round: usize) -> bool {
        if texts < 2 || round % AGAIN < MIN_RUNS {
            return false;
        }
        let known = |of: &BTreeMap<usize, Cost>, texts: usize| of.get(&texts).and_then(Cost::known);
        let Some(all) = known(&self.together, texts) else { return false };
        match known(&self.in_turns, texts) {
            Some(turn) => texts as f64 * turn < all,
            None => known(&self.together, 1).is_some_and(|one| texts as f64 * one < MIN_GAIN_FACTOR * all),
        }
    }

    /// Returns all costs; `launches` returns the launches of a step by its number of sequences.
    pub fn list(&self, launches: impl Fn(usize) -> Option<usize>) -> Vec<StepCost> {
        let of = |costs: &BTreeMap<usize, Cost>, in_turns: bool| -> Vec<StepCost> {
            let row = |(texts, cost): (&usize, &Cost)| {
                let launches = launches(if in_turns { 1 } else { *texts });
                StepCost { texts: *texts, in_turns, runs: cost.runs, seconds: cost.step, launches }
            };
            costs.iter().map(row).collect()
        };
        [of(&self.together, false), of(&self.in_turns, true)].concat()
    }

    /// Sets a cost as if it was measured.
    #[cfg(test)]
    pub fn set(&mut self, texts: usize, seconds: f64) {
        self.together.insert(texts, Cost { runs: 2 * MIN_RUNS, step: seconds });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(costs: &mut Costs, texts: usize, all: usize, seconds: f64) {
        (0..2 * MIN_RUNS).for_each(|_| _ = costs.add(texts, all, seconds));
    }

    /// Turns are tried if they are expected to save time, and kept if they do.
    #[test]
    fn turns_are_taken_as_long_as_they_save_time() {
        let mut costs = Costs::default();
        let turns = |costs: &Costs| costs.is_faster_one_by_one(2, AGAIN - 1);
        measured(&mut costs, 1, 1, 1.0);
        assert!(!turns(&costs), "two texts were never measured");
        measured(&mut costs, 2, 2, 2.05);
        assert!(!turns(&costs), "almost nothing is saved");
        measured(&mut costs, 2, 2, 4.0);
        assert!(turns(&costs) && !costs.is_faster_one_by_one(2, AGAIN), "all together from time to time");
        // A turn takes longer than the step of a single sequence.
        measured(&mut costs, 1, 2, 1.2);
        assert!(turns(&costs));
        (0..8).for_each(|_| measured(&mut costs, 1, 2, 2.5));
        assert!(!turns(&costs) && !costs.is_faster_one_by_one(1, 9));
        let rows = costs.list(|texts| (texts == 1).then_some(3));
        let what: Vec<_> = rows.iter().map(|row| (row.texts, row.in_turns, row.launches)).collect();
        assert_eq!(what, [(1, false, Some(3)), (2, false, None), (2, true, Some(3))]);
        assert_eq!(rows[0].seconds, 1.0, "turns are not steps of a single text");
    }
}
