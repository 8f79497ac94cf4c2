//! Division of elements over ranks.

use std::ops::Range;

/// Returns the elements of `count` that belong to `rank` of `size`: consecutive ranges whose lengths differ by at most one.
pub fn shard(count: usize, size: usize, rank: usize) -> Range<usize> {
    let (least, longer) = (count / size.max(1), count % size.max(1));
    let begin = rank * least + rank.min(longer);
    begin..begin + least + usize::from(rank < longer)
}

/// Divides `count` elements by `weights`: at least one for each if there are enough elements, and the rest by largest remainders. Weights that are
/// not positive count as zero.
pub fn divide(count: usize, weights: &[f64]) -> Vec<usize> {
    let weight = |i: usize| if weights[i] > 0.0 && weights[i].is_finite() { weights[i] } else { 0.0 };
    let n = weights.len();
    let total: f64 = (0..n).map(weight).sum();
    let spare = count.saturating_sub(n);
    let exact =
        |i: usize| if total > 0.0 { spare as f64 * weight(i) / total } else { spare as f64 / n as f64 };
    let least = usize::from(count >= n);
    let mut parts: Vec<usize> = (0..n).map(|i| least + exact(i) as usize).collect();
    let mut order: Vec<usize> = (0..n).collect();
    // For equal remainders, lower ranks go first.
    order.sort_by(|a, b| exact(*b).fract().total_cmp(&exact(*a).fract()).then(a.cmp(b)));
    let left = count.saturating_sub(parts.iter().sum());
    order.iter().cycle().take(left).for_each(|i| parts[*i] += 1);
    parts
}

/// Same as [`divide`] with at most `most[i]` elements for each; the excess goes to the others by their weights. `None` if all limits together are too
/// small.
pub fn divide_within(count: usize, weights: &[f64], most: &[usize]) -> Option<Vec<usize>> {
    let room = most.iter().fold(0usize, |sum, most| sum.saturating_add(*most));
    if room < count || weights.len() != most.len() {
        return None;
    }
    let mut full = vec![false; most.len()];
    loop {
        let free: Vec<usize> = (0..most.len()).filter(|i| !full[*i]).collect();
        let taken: usize = (0..most.len()).filter(|i| full[*i]).map(|i| most[i]).sum();
        let of_free: Vec<f64> = free.iter().map(|i| weights[*i]).collect();
        let parts = divide(count - taken, &of_free);
        let over: Vec<usize> =
            free.iter().zip(&parts).filter(|(i, n)| **n > most[**i]).map(|(i, _)| *i).collect();
        if over.is_empty() {
            let mut all = most.to_vec();
            free.iter().zip(parts).for_each(|(i, n)| all[*i] = n);
            return Some(all);
        }
        over.into_iter().for_each(|i| full[i] = true);
    }
}

#[cfg(test)]
mod tests {
    use super::{divide, divide_within};

    #[test]
    fn nobody_gets_more_than_there_is_room_for() {
        assert_eq!(divide_within(8, &[1.0, 1.0], &[9, 2]), Some(vec![6, 2]));
        assert_eq!(divide_within(8, &[1.0, 1.0], &[usize::MAX, usize::MAX]), Some(vec![4, 4]));
        assert_eq!(divide_within(8, &[1.0, 1.0, 6.0], &[9, 1, 3]), Some(vec![4, 1, 3]));
        assert_eq!(divide_within(5, &[1.0, 1.0], &[3, 1]), None);
        assert_eq!(divide_within(4, &[1.0, 1.0], &[3, 1]), Some(vec![3, 1]));
        for (count, seed) in (0..40).flat_map(|count| (1..9usize).map(move |seed| (count, seed))) {
            let most: Vec<usize> = (0..5).map(|i| 1 + (seed * 7919 + i * 104_729) % 17).collect();
            let weights: Vec<f64> = (0..5).map(|i| ((seed + 3 * i) % 6) as f64).collect();
            match divide_within(count, &weights, &most) {
                Some(parts) => {
                    assert_eq!(parts.iter().sum::<usize>(), count);
                    assert!(parts.iter().zip(&most).all(|(n, most)| n <= most), "{parts:?} of {most:?}");
                }
                None => assert!(most.iter().sum::<usize>() < count),
            }
        }
    }

    #[test]
    fn elements_are_divided_by_weights() {
        assert_eq!(divide(8, &[1.0, 1.0]), [4, 4]);
        assert_eq!(divide(9, &[3.0, 1.0]), [6, 3]);
        assert_eq!(divide(64, &[100.0, 1.0]), [62, 2]);
        assert_eq!(divide(5, &[0.0, f64::NAN, -1.0]), [2, 2, 1]);
        assert_eq!(divide(3, &[1000.0, 1.0, 1.0]), [1, 1, 1]);
        for count in 0..50 {
            for weights in [vec![1.0; 7], vec![0.3, 8.0, 1e-9, 2.0], vec![1.0]] {
                let parts = divide(count, &weights);
                assert_eq!(parts.iter().sum::<usize>(), count);
                assert!(count < weights.len() || parts.iter().all(|n| *n > 0));
            }
        }
    }
}
