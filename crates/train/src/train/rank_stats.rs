//! Values that ranks exchange at each step: loss, requests of observers, and times.

use netcl_dist::Group;
use netcl_tensor::Result;
use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Steps before times count, because the first ones compile and capture.
const WARMUP_STEPS: u64 = 4;
/// A signal reaches ranks at different steps; requests within this time after a requested checkpoint belong to the same signal.
const SAME_SIGNAL: Duration = Duration::from_secs(1);

/// A rank's part of the model in a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankStage {
    /// Number of the stage, from 0.
    pub stage: usize,
    /// Number of stages.
    pub stages: usize,
    /// Its layers, from 0.
    pub layers: Range<usize>,
}

impl fmt::Display for RankStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stage, stages, layers } = self;
        write!(f, "stage {stage} of {stages}, ")?;
        match layers.len() {
            1 => write!(f, "layer {}", layers.start),
            _ => write!(f, "layers {} to {}", layers.start, layers.end.saturating_sub(1)),
        }
    }
}

/// Unit of the speeds of ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpeedUnit {
    /// For texts.
    #[default]
    Tokens,
    /// For classifiers.
    Images,
}

impl fmt::Display for SpeedUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tokens => "tokens",
            Self::Images => "images",
        })
    }
}

/// Times of a rank, over the counted steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankTimes {
    /// Its device.
    pub device: String,
    /// Its layers, if they are divided.
    pub stage: Option<RankStage>,
    /// Number of counted steps: not the first ones, and none with an evaluation, a sample or a checkpoint.
    pub steps: u64,
    /// Sum of its rows over the steps' batches.
    pub rows: u64,
    /// Unit of speeds, and the number of units per row of a batch, over all micro-batches.
    pub unit: SpeedUnit,
    /// See [`unit`](Self::unit).
    pub row_units: u64,
    /// Sum of all ranks' rows.
    pub all_rows: u64,
    /// Seconds in which its device computes, or its host prepares that.
    pub computing: f64,
    /// Seconds from the end of its backward pass until the sums of all ranks' gradients arrive: exchange without overlap, and waiting for slower
    /// ranks. In a pipeline also the waiting for other stages, which is its bubble.
    pub waiting: f64,
}

impl RankTimes {
    /// Returns a summary as text: `50.0 % of the batch, 1234 tokens/s while it computes, 3.1 % of its time in exchange and waiting`.
    pub fn line(&self) -> String {
        let stage = self.stage.as_ref().map_or_else(String::new, |stage| format!("{stage}; "));
        if self.steps == 0 {
            return format!("{stage}too few steps to measure");
        }
        format!(
            "{stage}{:.1} % of the batch, {:.0} {}/s while it computes, {:.1} % of its time in exchange and waiting",
            100.0 * self.share(),
            self.speed(),
            self.unit,
            100.0 * self.waiting_share()
        )
    }

    /// Returns its share of the batch, 0 to 1.
    pub fn share(&self) -> f64 {
        self.rows as f64 / self.all_rows as f64
    }

    /// Returns the tokens or images per second while it computes.
    pub fn speed(&self) -> f64 {
        (self.rows * self.row_units) as f64 / self.computing
    }

    /// Returns the share of its time in collective operations, 0 to 1.
    pub fn waiting_share(&self) -> f64 {
        self.waiting / (self.computing + self.waiting)
    }
}

/// This rank's knowledge from the exchange with the others.
#[derive(Debug, Default)]
pub(super) struct RankStats {
    /// Whether a rank was asked to stop, and to save, in the last step.
    pub asked: [bool; 2],
    /// The ranks whose part of the loss was not finite first.
    pub not_finite: Vec<usize>,
    /// Times per rank.
    pub times: Vec<RankTimes>,
    /// Stages of the pipeline: this many consecutive ranks have the same rows. 0 and 1 without a pipeline.
    pub stages: u64,
    exchanged: u64,
    /// Time and duration of the last exchange.
    last: Option<(Instant, Duration)>,
    paused: bool,
    saved: Option<Instant>,
}

impl RankStats {
    /// Exchanges this rank's part of the loss, its rows, the time it waited for sums of gradients after its backward pass, and its requests; returns
    /// the whole loss.
    ///
    /// # Errors
    /// Errors of the group.
    pub fn exchange(
        &mut self,
        group: &Group,
        loss: f32,
        (rows, waited): (usize, Duration),
        asked: [bool; 2],
    ) -> Result<f32> {
        let now = Instant::now();
        let (took, waiting) = self.last.take().map_or((0.0, 0.0), |(then, told)| {
            (now.duration_since(then).as_secs_f32(), (waited + told).as_secs_f32())
        });
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        let [stop, save] = [asked[0], asked[1] && !self.is_of_last_signal()].map(u32::from);
        let own = [loss.to_bits(), stop, save, rows, (took - waiting).max(0.0).to_bits(), waiting.to_bits()];
        let all = group.all_gather(&own)?;
        self.last = Some((now, now.elapsed()));
        let of_rank: Vec<&[u32]> = all.chunks_exact(own.len()).collect();
        self.asked = [1, 2].map(|i| of_rank.iter().any(|rank| rank[i] != 0));
        if self.asked[1] {
            self.saved = Some(Instant::now());
        }
        let losses = of_rank.iter().map(|rank| f32::from_bits(rank[0]));
        if self.not_finite.is_empty() {
            self.not_finite = losses
                .clone()
                .enumerate()
                .filter(|(_, loss)| !loss.is_finite())
                .map(|(rank, _)| rank)
                .collect();
        }
        self.exchanged += 1;
        if !std::mem::take(&mut self.paused) && self.exchanged > WARMUP_STEPS {
            self.count(&of_rank);
        }
        Ok(losses.sum())
    }

    fn is_of_last_signal(&self) -> bool {
        self.saved.is_some_and(|saved| saved.elapsed() < SAME_SIGNAL)
    }

    fn count(&mut self, of_rank: &[&[u32]]) {
        let all_rows = of_rank.iter().map(|rank| u64::from(rank[3])).sum::<u64>() / self.stages.max(1);
        for (times, rank) in self.times.iter_mut().zip(of_rank) {
            times.steps += 1;
            times.rows += u64::from(rank[3]);
            times.all_rows += all_rows;
            times.computing += f64::from(f32::from_bits(rank[4]));
            times.waiting += f64::from(f32::from_bits(rank[5]));
        }
    }

    /// Prepares for next steps that compile and capture again.
    pub fn restart(&mut self) {
        self.exchanged = 0;
    }

    /// Records that ranks do something else between the last step and the next one.
    pub fn pausing(&mut self) {
        self.paused = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_dist::local;

    fn run_ranks(n: usize, f: impl Fn(&Group, &mut RankStats) -> Result<()> + Sync) -> Vec<RankStats> {
        let f = &f;
        std::thread::scope(|scope| {
            let run = |rank: Group| {
                scope.spawn(move || {
                    let times = vec![RankTimes { row_units: 8, ..RankTimes::default() }; rank.size()];
                    let mut told = RankStats { times, ..RankStats::default() };
                    f(&rank, &mut told).map(|()| told)
                })
            };
            let threads: Vec<_> = local(n, Duration::from_secs(60)).into_iter().map(run).collect();
            threads.into_iter().map(|t| t.join().unwrap().unwrap()).collect()
        })
    }

    #[test]
    fn all_ranks_learn_whose_loss_was_not_finite_first() {
        let all = run_ranks(3, |rank, told| {
            for step in 0..3 {
                let bad = step == 1 && rank.rank() == 2 || step == 2;
                let loss =
                    told.exchange(rank, if bad { f32::NAN } else { 0.5 }, (1, Duration::ZERO), [false; 2])?;
                assert_eq!(loss.is_finite(), step == 0);
            }
            Ok(())
        });
        assert!(all.iter().all(|told| told.not_finite == [2]));
    }

    #[test]
    fn a_signal_that_ranks_get_at_different_steps_saves_once() {
        let all = run_ranks(2, |rank, told| {
            let mut saves = 0;
            for step in 0..3 {
                told.exchange(rank, 1.0, (1, Duration::ZERO), [false, step == rank.rank()])?;
                saves += usize::from(told.asked[1]);
            }
            assert_eq!(saves, 1);
            Ok(())
        });
        assert!(all.iter().all(|told| told.asked == [false; 2]));
    }

    #[test]
    fn times_are_those_of_steps_without_a_pause() {
        let all = run_ranks(2, |rank, told| {
            for step in 0..WARMUP_STEPS + 4 {
                if step == WARMUP_STEPS + 2 {
                    told.pausing();
                }
                std::thread::sleep(Duration::from_millis(if rank.rank() == 1 { 20 } else { 0 }));
                let begun = Instant::now();
                rank.barrier()?;
                told.exchange(rank, 1.0, (1 + 2 * rank.rank(), begun.elapsed()), [false; 2])?;
            }
            Ok(())
        });
        for told in all {
            let [fast, slow] = told.times.as_slice() else { unreachable!("two ranks") };
            assert_eq!((fast.steps, fast.share(), slow.share()), (3, 0.25, 0.75));
            assert!(slow.computing >= 0.06 && slow.computing > fast.computing);
            assert!(fast.waiting_share() > slow.waiting_share(), "{fast:?} {slow:?}");
            assert!(slow.speed() <= 3.0 * 8.0 / 0.02);
        }
    }
}
