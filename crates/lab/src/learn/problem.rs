//! The problems of the steps: inputs, operations, and the result in f64 for comparison.

use netcl::device::draw::mix;
use netcl::prelude::*;

/// For a product M, N, K; for attention the heads H, tokens T, and head size D.
pub type Size = [usize; 3];

/// The computation of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// C (M,N) = A (M,K) B (K,N).
    Product,
    /// The softmax of each row of (H*T, T).
    Softmax,
    /// o (H,T,D) = softmax(q kᵀ / √D) v, of q, k, v (H,T,D).
    Attention {
        /// Whether a token sees only itself and earlier tokens.
        causal: bool,
    },
}

/// A problem of one size with its inputs.
pub struct Problem {
    pub work: Work,
    pub size: Size,
    pub dtype: DType,
    pub inputs: Vec<Vec<f32>>,
}

/// The extent of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Checked {
    pub rows: usize,
    pub of: usize,
}

/// Maximum multiply-adds for comparing on the host; for larger problems only some rows are compared.
const BUDGET: usize = 1 << 27;

/// Returns pseudorandom values between -1 and 1, the same in each run.
fn value(i: u64) -> f64 {
    mix(i.wrapping_mul(0x9E37_79B9_7F4A_7C15)) as f64 / 2f64.powi(63) - 1.0
}

impl Work {
    /// Returns the elements of the inputs, and of the result.
    pub fn elements(self, [a, b, c]: Size) -> (Vec<usize>, usize) {
        match self {
            Self::Product => (vec![a * c, c * b], a * b),
            Self::Softmax => (vec![a * b * b], a * b * b),
            Self::Attention { .. } => (vec![a * b * c; 3], a * b * c),
        }
    }

    /// Returns whether times of two steps can be compared.
    pub fn comparable(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

impl Problem {
    pub fn new(work: Work, size: Size, dtype: DType) -> Self {
        let fill = |(which, count): (usize, usize)| -> Vec<f32> {
            // Logits of a softmax differ by more than one; all other values are between -1 and 1.
            let range = if work == Work::Softmax { 8.0 } else { 1.0 };
            let first = (which as u64) << 40;
            (0..count as u64).map(|i| dtype.round(range * value(first + i)) as f32).collect()
        };
        let inputs = work.elements(size).0.into_iter().enumerate().map(fill).collect();
        Self { work, size, dtype, inputs }
    }

    /// Returns the elements of the result.
    pub fn outputs(&self) -> usize {
        self.work.elements(self.size).1
    }

    /// Returns the rows of the result and their length.
    pub fn rows(&self) -> (usize, usize) {
        let [a, b, c] = self.size;
        match self.work {
            Work::Product => (a, b),
            Work::Softmax => (a * b, b),
            Work::Attention { .. } => (a * b, c),
        }
    }

    /// Returns the factor of attention's scores.
    pub fn scale(&self) -> f32 {
        1.0 / (self.size[2] as f32).sqrt()
    }

    /// Returns the floating-point operations: two per multiply-add; for a softmax, exponential, subtraction, addition and division count as one each.
    pub fn flops(&self) -> f64 {
        let [a, b, c] = self.size.map(|n| n as f64);
        match self.work {
            Work::Product => 2.0 * a * b * c,
            Work::Softmax => 4.0 * a * b * b,
            Work::Attention { causal } => 4.0 * a * c * if causal { b * (b + 1.0) / 2.0 } else { b * b },
        }
    }

    /// Returns the bytes of inputs and result, each counted once, as with a perfect cache.
    pub fn bytes(&self) -> f64 {
        let (inputs, outputs) = self.work.elements(self.size);
        ((inputs.iter().sum::<usize>() + outputs) * self.dtype.size()) as f64
    }

    /// Compares rows of the result, which `read` returns, with f64.
    ///
    /// # Errors
    /// `Internal` naming the first wrong element, and errors of `read`.
    pub fn check(&self, read: &mut dyn FnMut(usize) -> Result<Vec<f32>>) -> Result<Checked> {
        let (rows, _) = self.rows();
        let cost = (self.flops() / 2.0 / rows as f64).max(1.0) as usize;
        let count = (BUDGET / cost).clamp(4, rows.max(4)).min(rows);
        for i in 0..count {
            // The first, the last, and others evenly between them.
            let row = if count == 1 { 0 } else { i * (rows - 1) / (count - 1) };
            let expected = self.row(row);
            let got = read(row)?;
            if got.len() != expected.len() {
                return Err(Error::internal(format!("row {row} has {} elements", got.len())));
            }
            for (column, (got, (expected, size))) in got.iter().zip(expected).enumerate() {
                let bound = self.dtype.epsilon() * expected.abs() + size + f64::from(f32::MIN_POSITIVE);
                // Not `>`, because NaN is wrong.
                let near = (f64::from(*got) - expected).abs() <= bound;
                if !near {
                    return Err(Error::internal(format!(
                        "the result is wrong: element {column} of row {row} is {got}, expected {expected}; allowed difference \
                         {bound:.2e}"
                    )));
                }
            }
        }
        Ok(Checked { rows: count, of: rows })
    }

    /// Returns one row of the result in f64, each element with the allowed error of a sum in f32.
    fn row(&self, row: usize) -> Vec<(f64, f64)> {
        let eps = f64::from(f32::EPSILON);
        let [_, b, c] = self.size;
        match self.work {
            Work::Product => {
                let mut sums = vec![(0.0, 0.0); b];
                for l in 0..c {
                    let left = f64::from(self.inputs[0][row * c + l]);
                    let right = &self.inputs[1][l * b..(l + 1) * b];
                    for ((sum, size), right) in sums.iter_mut().zip(right) {
                        let term = left * f64::from(*right);
                        *sum += term;
                        *size += 8.0 * eps * term.abs();
                    }
                }
                sums
            }
            Work::Softmax => {
                let logits: Vec<f64> =
                    self.inputs[0][row * b..(row + 1) * b].iter().map(|v| f64::from(*v)).collect();
                softmax(&logits).into_iter().map(|p| (p, 64.0 * eps * p)).collect()
            }
            Work::Attention { causal } => {
                let (head, seen) = (row / b * b, if causal { row % b + 1 } else { b });
                let vector = |which: usize, token: usize| {
                    &self.inputs[which][(head + token) * c..(head + token + 1) * c]
                };
                let query = vector(0, row % b);
                let scale = 1.0 / (c as f64).sqrt();
                let dot = |token: usize| -> (f64, f64) {
                    let terms = query
                        .iter()
                        .zip(vector(1, token))
                        .map(|(q, k)| f64::from(*q) * f64::from(*k) * scale);
                    terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
                };
                let scores: Vec<(f64, f64)> = (0..seen).map(dot).collect();
                let largest = scores.iter().fold(0.0f64, |most, (_, size)| most.max(*size));
                let shares = softmax(&scores.iter().map(|(score, _)| *score).collect::<Vec<_>>());
                let mut sums = vec![(0.0, 0.0); c];
                for (token, share) in shares.into_iter().enumerate() {
                    for ((sum, size), v) in sums.iter_mut().zip(vector(2, token)) {
                        let term = share * f64::from(*v);
                        *sum += term;
                        *size += 32.0 * eps * (1.0 + largest) * term.abs();
                    }
                }
                sums
            }
        }
    }
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = logits.iter().map(|v| (v - top).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|p| p / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKS: [Work; 4] =
        [Work::Product, Work::Softmax, Work::Attention { causal: false }, Work::Attention { causal: true }];

    #[test]
    fn one_wrong_element_is_found_in_every_problem() {
        for work in WORKS {
            let problem = Problem::new(work, [3, 5, 7], DType::F32);
            let (rows, _) = problem.rows();
            let exact = |row: usize| problem.row(row).iter().map(|(v, _)| *v as f32).collect::<Vec<_>>();
            let checked = problem.check(&mut |row| Ok(exact(row))).unwrap();
            assert_eq!((checked.rows, checked.of), (rows, rows));
            for wrong in [1e-4, f32::NAN] {
                let mut broken = |row: usize| {
                    let mut values = exact(row);
                    values[1] += if row == rows - 1 { wrong } else { 0.0 };
                    Ok(values)
                };
                let message = problem.check(&mut broken).unwrap_err().to_string();
                assert!(message.contains(&format!("element 1 of row {} is", rows - 1)), "{message}");
            }
        }
    }

    #[test]
    fn of_large_problems_some_rows_are_compared() {
        let problem = Problem::new(Work::Product, [1024, 512, 512], DType::F32);
        let mut seen = Vec::new();
        let checked = problem.check(&mut |row| {
            seen.push(row);
            Ok(problem.row(row).iter().map(|(v, _)| *v as f32).collect())
        });
        let checked = checked.unwrap();
        assert!(checked.rows == 512 && checked.of == 1024, "{checked:?}");
        assert!(seen.first() == Some(&0) && seen.last() == Some(&1023));
    }

    /// Compares the references with values computed by hand.
    #[test]
    fn references() {
        let mut problem = Problem::new(Work::Product, [1, 1, 2], DType::F32);
        problem.inputs = vec![vec![2.0, 3.0], vec![5.0, 7.0]];
        assert_eq!(problem.row(0)[0].0, 31.0);
        let mut problem = Problem::new(Work::Attention { causal: true }, [1, 2, 1], DType::F32);
        problem.inputs = vec![vec![1.0, 1.0], vec![0.0, 0.0], vec![2.0, 4.0]];
        assert_eq!((problem.row(0)[0].0, problem.row(1)[0].0), (2.0, 3.0));
    }
}
