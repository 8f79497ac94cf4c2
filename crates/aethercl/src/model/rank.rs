//! Measures the agreement of the ranking by modeled times with the ranking by measured times.

/// Returns Spearman's rank correlation coefficient; 0 if all values of one side are equal. Both sides have one value per item.
pub fn spearman(a: &[f64], b: &[f64]) -> f64 {
    let (a, b) = (ranks(a), ranks(b));
    let mean = (a.len() as f64 - 1.0) / 2.0;
    let sum = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(p, q)| (p - mean) * (q - mean)).sum::<f64>();
    let both = (sum(&a, &a) * sum(&b, &b)).sqrt();
    if both > 0.0 { sum(&a, &b) / both } else { 0.0 }
}

/// Returns ranks from 0; equal values get the mean of their ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |v: &f64| {
        let below = values.iter().filter(|w| *w < v).count() as f64;
        let equal = values.iter().filter(|w| *w == v).count() as f64;
        below + (equal - 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_agree_disagree_or_say_nothing() {
        let near =
            |a: &[f64], b: &[f64], rho: f64| assert!((spearman(a, b) - rho).abs() < 1e-12, "{a:?} {b:?}");
        near(&[1.0, 2.0, 30.0], &[5.0, 6.0, 7.0], 1.0);
        near(&[1.0, 2.0, 30.0], &[7.0, 6.0, -5.0], -1.0);
        near(&[1.0, 2.0, 3.0], &[4.0, 4.0, 4.0], 0.0);
        // Ranks 0, 1.5, 1.5, 3 compared with 0, 2, 1, 3: 4.5 divided by the root of 4.5 times 5.
        near(&[3.0, 1.0, 3.0], &[2.0, 1.0, 3.0], 1.5 / (1.5f64 * 2.0).sqrt());
        near(&[1.0, 2.0, 2.0, 3.0], &[1.0, 3.0, 2.0, 4.0], 4.5 / (4.5f64 * 5.0).sqrt());
        near(&[], &[], 0.0);
    }
}
