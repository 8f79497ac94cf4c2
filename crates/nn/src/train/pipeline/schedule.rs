//! In which order a stage runs forward and backward passes of micro-batches.

/// A pass of a micro-batch through the layers of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Forward, from the stage before.
    Forward(usize),
    /// Backward, from the stage behind.
    Backward(usize),
}

impl Task {
    /// Number of the micro-batch in its step.
    pub fn micro(self) -> usize {
        match self {
            Self::Forward(micro) | Self::Backward(micro) => micro,
        }
    }

    /// The stage beside `stage` that what the pass takes is from; none where it begins with tokens or the loss.
    pub fn from(self, stage: usize, stages: usize) -> Option<usize> {
        match self {
            Self::Forward(_) => stage.checked_sub(1),
            Self::Backward(_) => Some(stage + 1).filter(|behind| *behind < stages),
        }
    }

    /// The stage beside `stage` that takes what the pass makes.
    pub fn to(self, stage: usize, stages: usize) -> Option<usize> {
        match self {
            Self::Forward(_) => Some(stage + 1).filter(|behind| *behind < stages),
            Self::Backward(_) => stage.checked_sub(1),
        }
    }
}

/// How many forward passes a stage makes before its first backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Depth {
    /// As many as there are stages behind it: the fewest activations with which no stage stands still, if exchanges took no time (1F1B). They
    /// take some, and in each stage every pass then waits for the one that was just ended in the stage beside it.
    #[default]
    Least,
    /// Twice as many: between the pass that makes something and the one that takes it in the stage beside, both stages have another pass, which
    /// hides the exchange (the eager 1F1B of Zhuang et al. 2022, "On Optimizing the Communication of Model Parallelism").
    Twice,
}

impl Depth {
    /// The forward passes of `stage` of `stages` before its first backward pass, in a step of `micros` micro-batches.
    pub fn ahead(self, stage: usize, stages: usize, micros: usize) -> usize {
        let behind = stages.saturating_sub(stage + 1);
        let ahead = match self {
            Self::Least => behind,
            Self::Twice => 2 * behind,
        };
        ahead.min(micros)
    }

    /// The most micro-batches that have activations in `stage` at a time.
    pub fn slots(self, stage: usize, stages: usize, micros: usize) -> usize {
        (self.ahead(stage, stages, micros) + 1).min(micros).max(1)
    }
}

/// The passes of `stage` of `stages` for a step of `micros` micro-batches, one forward and one backward in turn (1F1B): forward passes first, as
/// many as `depth` says, then each forward is followed by the oldest backward, and the remaining backward passes come last.
pub fn tasks(stage: usize, stages: usize, micros: usize, depth: Depth) -> Vec<Task> {
    let ahead = depth.ahead(stage, stages, micros);
    let first = (0..ahead).map(Task::Forward);
    let pairs = (ahead..micros).flat_map(|i| [Task::Forward(i), Task::Backward(i - ahead)]);
    let last = (micros - ahead..micros).map(Task::Backward);
    first.chain(pairs).chain(last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, VecDeque};

    fn all() -> impl Iterator<Item = (usize, usize, Depth)> {
        let sizes = (1..=6).flat_map(|stages| [1, 2, 3, 5, 6, 7, 12].map(|micros| (stages, micros)));
        sizes.flat_map(|(stages, micros)| [Depth::Least, Depth::Twice].map(|depth| (stages, micros, depth)))
    }

    #[test]
    fn every_pass_comes_once_and_activations_are_few() {
        for (stages, micros, depth) in all() {
            for stage in 0..stages {
                let (mut forward, mut backward, mut most) = (0, 0, 0);
                for task in tasks(stage, stages, micros, depth) {
                    match task {
                        Task::Forward(i) => {
                            assert_eq!(i, forward);
                            forward += 1;
                        }
                        Task::Backward(i) => {
                            assert_eq!(i, backward);
                            backward += 1;
                            assert!(backward <= forward, "a backward pass before its forward pass");
                        }
                    }
                    most = most.max(forward - backward);
                }
                assert_eq!((forward, backward), (micros, micros));
                assert_eq!(most, depth.slots(stage, stages, micros), "stage {stage} of {stages}, {depth:?}");
                assert!(depth != Depth::Least || most <= stages - stage);
            }
        }
    }

    #[test]
    fn two_stages_of_four_micro_batches() {
        use Task::{Backward as B, Forward as F};
        let (least, twice) = (Depth::Least, Depth::Twice);
        assert_eq!(tasks(0, 2, 4, least), [F(0), F(1), B(0), F(2), B(1), F(3), B(2), B(3)]);
        assert_eq!(tasks(0, 2, 4, twice), [F(0), F(1), F(2), B(0), F(3), B(1), B(2), B(3)]);
        for depth in [least, twice] {
            assert_eq!(tasks(1, 2, 4, depth), [F(0), B(0), F(1), B(1), F(2), B(2), F(3), B(3)]);
            assert_eq!(tasks(0, 3, 1, depth), [F(0), B(0)]);
        }
    }

    /// A stage takes what its passes need in their order, and another thread gives away what they make in that order. Messages end only when
    /// both sides are there, which is the strictest that a transport may be: no stage waits for ever.
    #[test]
    fn stages_do_not_wait_for_each_other_in_a_circle() {
        for (stages, micros, depth) in all() {
            let list = |stage: usize| VecDeque::from(tasks(stage, stages, micros, depth));
            let mut left: Vec<VecDeque<Task>> = (0..stages).map(list).collect();
            let mut made: Vec<VecDeque<(usize, Task)>> = vec![VecDeque::new(); stages];
            while left.iter().any(|left| !left.is_empty()) || made.iter().any(|made| !made.is_empty()) {
                let mut moved = false;
                for stage in 0..stages {
                    let Some(task) = left[stage].front().copied() else { continue };
                    if let Some(from) = task.from(stage, stages) {
                        // What comes is what this pass takes.
                        if made[from].front() != Some(&(stage, task)) {
                            continue;
                        }
                        made[from].pop_front();
                    }
                    left[stage].pop_front();
                    made[stage].extend(task.to(stage, stages).map(|to| (to, task)));
                    moved = true;
                }
                assert!(moved, "{stages} stages of {micros} micro-batches stand still: {left:?} {made:?}");
            }
        }
    }

    /// Time of a step in which a forward pass takes 10, a backward pass 20, and what one makes is `exchange` later in the stage beside.
    fn time(stages: usize, micros: usize, depth: Depth, exchange: usize) -> usize {
        let lists: Vec<Vec<Task>> = (0..stages).map(|stage| tasks(stage, stages, micros, depth)).collect();
        let (mut at, mut free) = (vec![0; stages], vec![0usize; stages]);
        let mut ended: BTreeMap<(usize, bool, usize), usize> = BTreeMap::new();
        let key = |stage: usize, task: Task| (stage, matches!(task, Task::Forward(_)), task.micro());
        while (0..stages).any(|stage| at[stage] < lists[stage].len()) {
            for stage in 0..stages {
                let Some(task) = lists[stage].get(at[stage]).copied() else { continue };
                let there = match task.from(stage, stages) {
                    None => 0,
                    Some(from) => match ended.get(&key(from, task)) {
                        Some(ended) => ended + exchange,
                        None => continue,
                    },
                };
                let took = if matches!(task, Task::Forward(_)) { 10 } else { 20 };
                free[stage] = there.max(free[stage]) + took;
                ended.insert(key(stage, task), free[stage]);
                at[stage] += 1;
            }
        }
        free.into_iter().max().unwrap_or(0)
    }

    /// The bubble: a step of passes that take as long takes `micros + stages - 1` forward and backward passes.
    #[test]
    fn a_step_has_the_bubble_of_one_f_one_b() {
        for (stages, micros, depth) in all() {
            assert_eq!(
                time(stages, micros, depth, 0),
                30 * (micros + stages - 1),
                "{stages} {micros} {depth:?}"
            );
        }
    }

    /// Exchanges are exposed where the pipeline fills and empties, not once for every micro-batch.
    #[test]
    fn twice_the_depth_hides_exchanges() {
        for (stages, micros) in [(2, 8), (2, 16), (3, 12), (4, 16)] {
            let [least, twice] = [Depth::Least, Depth::Twice].map(|depth| time(stages, micros, depth, 2));
            let without = 30 * (micros + stages - 1);
            assert_eq!(twice, without + 2 * 2 * (stages - 1), "{stages} {micros}");
            assert!(least >= without + 2 * (micros - 1), "{stages} {micros}: {least}");
        }
    }
}
