//! The order in which a stage runs forward and backward passes of micro-batches.

/// A pass of a micro-batch through the layers of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipelineTask {
    /// Forward pass, with input from the previous stage.
    Forward(usize),
    /// Backward pass, with a gradient from the next stage.
    Backward(usize),
}

impl PipelineTask {
    /// Returns the number of the micro-batch in its step.
    pub fn micro(self) -> usize {
        match self {
            Self::Forward(micro) | Self::Backward(micro) => micro,
        }
    }
}

/// Returns the passes of `stage` of `stages` for a step of `micros` micro-batches, one forward and one backward in turn (1F1B). First come as many
/// forward passes as there are later stages; then each forward is followed by the oldest backward; the remaining backward passes come last. At most
/// `stages - stage` micro-batches have activations at a time.
pub fn tasks(stage: usize, stages: usize, micros: usize) -> Vec<PipelineTask> {
    let ahead = stages.saturating_sub(stage + 1).min(micros);
    let first = (0..ahead).map(PipelineTask::Forward);
    let pairs = (ahead..micros).flat_map(|i| [PipelineTask::Forward(i), PipelineTask::Backward(i - ahead)]);
    let last = (micros - ahead..micros).map(PipelineTask::Backward);
    first.chain(pairs).chain(last).collect()
}

/// A stage's exchange with its neighbors between two passes: it sends the result of `done` and waits for the input of `next`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    /// The stage that receives the result.
    pub to: Option<usize>,
    /// The stage that sends the next input.
    pub from: Option<usize>,
}

impl Exchange {
    /// Returns the exchange between the passes `done` and `next` of a stage.
    pub fn between(
        done: Option<PipelineTask>,
        next: Option<PipelineTask>,
        (stage, stages): (usize, usize),
    ) -> Self {
        let (before, behind) = (stage.checked_sub(1), Some(stage + 1).filter(|behind| *behind < stages));
        let to = done.and_then(|done| match done {
            PipelineTask::Forward(_) => behind,
            PipelineTask::Backward(_) => before,
        });
        let from = next.and_then(|next| match next {
            PipelineTask::Forward(_) => before,
            PipelineTask::Backward(_) => behind,
        });
        Self { to, from }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn all() -> impl Iterator<Item = (usize, usize)> {
        (1..=6).flat_map(|stages| [1, 2, 3, 5, 6, 7, 12].map(|micros| (stages, micros)))
    }

    #[test]
    fn every_pass_comes_once_and_activations_are_few() {
        for (stages, micros) in all() {
            for stage in 0..stages {
                let (mut forward, mut backward, mut most) = (0, 0, 0);
                for task in tasks(stage, stages, micros) {
                    match task {
                        PipelineTask::Forward(i) => {
                            assert_eq!(i, forward);
                            forward += 1;
                        }
                        PipelineTask::Backward(i) => {
                            assert_eq!(i, backward);
                            backward += 1;
                            assert!(backward <= forward, "a backward pass before its forward pass");
                        }
                    }
                    most = most.max(forward - backward);
                }
                assert_eq!((forward, backward), (micros, micros));
                assert!(
                    most <= stages - stage,
                    "{most} micro-batches at a time in stage {stage} of {stages}"
                );
            }
        }
    }

    #[test]
    fn two_stages_of_four_micro_batches() {
        use PipelineTask::{Backward as B, Forward as F};
        assert_eq!(tasks(0, 2, 4), [F(0), F(1), B(0), F(2), B(1), F(3), B(2), B(3)]);
        assert_eq!(tasks(1, 2, 4), [F(0), B(0), F(1), B(1), F(2), B(2), F(3), B(3)]);
        assert_eq!(tasks(0, 3, 1), [F(0), B(0)]);
    }

    /// Lists what a stage waits for: an exchange with one neighbor is one operation; an exchange with two is one message followed by another.
    fn waits(stage: usize, stages: usize, micros: usize) -> Vec<Vec<Exchange>> {
        let tasks: Vec<Option<PipelineTask>> = tasks(stage, stages, micros).into_iter().map(Some).collect();
        let done = std::iter::once(None).chain(tasks.iter().copied());
        let next = tasks.iter().copied().chain([None]);
        let all = done.zip(next).map(|(done, next)| Exchange::between(done, next, (stage, stages)));
        all.map(|both| match both {
            Exchange { to: Some(to), from: Some(from) } if to != from => {
                vec![Exchange { to: Some(to), from: None }, Exchange { to: None, from: Some(from) }]
            }
            both => vec![both],
        })
        .collect()
    }

    /// Messages end only when both sides are present, the strictest behavior of a transport. No stage waits forever, and each receives what it
    /// expects. In slots of equal passes, a step takes `micros + stages - 1` slots of each kind.
    #[test]
    fn stages_do_not_wait_for_each_other_in_a_circle() {
        for (stages, micros) in all() {
            let mut left: Vec<Vec<Exchange>> = (0..stages)
                .map(|stage| waits(stage, stages, micros).into_iter().flatten().rev().collect())
                .collect();
            // Which of a stage's two messages are done.
            let mut gone = vec![(false, false); stages];
            while left.iter().any(|left| !left.is_empty()) {
                let mut moved = false;
                for stage in 0..stages {
                    let Some(own) = left[stage].last().copied() else { continue };
                    if let Some(to) = own.to.filter(|_| !gone[stage].0) {
                        let other = left[to].last().copied().unwrap_or_default();
                        if other.from == Some(stage) && !gone[to].1 {
                            (gone[stage].0, gone[to].1, moved) = (true, true, true);
                        }
                    }
                }
                for stage in 0..stages {
                    let Some(own) = left[stage].last().copied() else { continue };
                    if (own.to.is_none() || gone[stage].0) && (own.from.is_none() || gone[stage].1) {
                        left[stage].pop();
                        (gone[stage], moved) = ((false, false), true);
                    }
                }
                assert!(moved, "{stages} stages of {micros} micro-batches are blocked: {left:?}");
            }
        }
    }

    /// The bubble: a step of passes of equal duration takes `micros + stages - 1` forward and backward passes.
    #[test]
    fn a_step_has_the_bubble_of_one_f_one_b() {
        for (stages, micros) in all() {
            let lists: Vec<Vec<PipelineTask>> =
                (0..stages).map(|stage| tasks(stage, stages, micros)).collect();
            let mut at = vec![0; stages];
            let mut free = vec![0usize; stages];
            let mut ended = std::collections::BTreeMap::new();
            let mut open: BTreeSet<usize> = (0..stages).collect();
            while !open.is_empty() {
                let before = at.clone();
                for stage in 0..stages {
                    let Some(task) = lists[stage].get(at[stage]).copied() else {
                        open.remove(&stage);
                        continue;
                    };
                    let (needs, took) = match task {
                        PipelineTask::Forward(i) => {
                            (stage.checked_sub(1).map(|s| (s, PipelineTask::Forward(i))), 1)
                        }
                        PipelineTask::Backward(i) => {
                            ((stage + 1 < stages).then(|| (stage + 1, PipelineTask::Backward(i))), 2)
                        }
                    };
                    let key = |(s, task): (usize, PipelineTask)| (s, format!("{task:?}"));
                    let ready = match needs.map(|n| ended.get(&key(n)).copied()) {
                        Some(None) => continue,
                        Some(Some(ready)) => ready,
                        None => 0,
                    };
                    free[stage] = ready.max(free[stage]) + took;
                    ended.insert(key((stage, task)), free[stage]);
                    at[stage] += 1;
                }
                assert!(at != before || open.is_empty() || lists.iter().zip(&at).all(|(l, i)| l.len() == *i));
            }
            assert_eq!(free.iter().max(), Some(&(3 * (micros + stages - 1))), "{stages} {micros}");
        }
    }
}
