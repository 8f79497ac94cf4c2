//! Advantages of answers within their groups.

use netcl_device::{Error, Result};

/// Added to a standard deviation before an advantage is divided by it.
const EPSILON: f64 = 1e-4;

/// The standard deviation that advantages are divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RewardScale {
    /// That of the group.
    #[default]
    Group,
    /// That of all answers.
    Batch,
    /// Advantages are not divided (Dr. GRPO, Liu et al. 2025).
    None,
}

/// Returns the advantage of each answer: its reward minus the mean of its group, divided by a standard deviation. `rewards` has groups of `group`
/// answers. Answers without a reward (NaN) do not count, and have advantage 0.
///
/// # Errors
/// `Format` if a group has fewer than two answers, or the answers are not whole groups.
pub fn group_advantages(rewards: &[f64], group: usize, scale: RewardScale) -> Result<Vec<f64>> {
    if group < 2 || !rewards.len().is_multiple_of(group) {
        return Err(Error::format(format!(
            "advantages: {} rewards in groups of {group}, expected whole groups of at least two answers",
            rewards.len()
        )));
    }
    let whole = deviation(rewards);
    let of_group = |answers: &[f64]| {
        let (mean, own) = (mean(answers), deviation(answers));
        let divisor = match scale {
            RewardScale::Group => own + EPSILON,
            RewardScale::Batch => whole + EPSILON,
            RewardScale::None => 1.0,
        };
        let advantage = move |reward: &f64| (reward - mean) / divisor;
        answers.iter().map(advantage).map(|a| if a.is_nan() { 0.0 } else { a }).collect::<Vec<_>>()
    };
    Ok(rewards.chunks(group).flat_map(of_group).collect())
}

fn scored(rewards: &[f64]) -> impl Iterator<Item = f64> + '_ {
    rewards.iter().copied().filter(|reward| !reward.is_nan())
}

/// Returns the mean of the rewards that exist; NaN without any.
fn mean(rewards: &[f64]) -> f64 {
    scored(rewards).sum::<f64>() / scored(rewards).count() as f64
}

/// Returns the standard deviation of the rewards that exist, of a sample; NaN for fewer than two.
fn deviation(rewards: &[f64]) -> f64 {
    let (mean, count) = (mean(rewards), scored(rewards).count());
    let squares: f64 = scored(rewards).map(|reward| (reward - mean).powi(2)).sum();
    if count < 2 { f64::NAN } else { (squares / (count - 1) as f64).sqrt() }
}
