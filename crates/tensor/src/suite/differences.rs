//! Gradients of a reference by central differences.
//!
//! One element at a time, this takes two evaluations of the reference per element. But the rows of a softmax are independent. One element of every
//! row can be changed at once, and each result gives the slope of the one element on which it depends. Independence is not declared but detected,
//! by changing halves of the elements and comparing results. The gradient has the same bits as one element at a time.

use crate::array::Array;
use std::collections::BTreeMap;

/// A bit of an element's index along one axis.
#[derive(Clone, Copy)]
struct Bit {
    /// Stride of the axis in elements.
    stride: usize,
    size: usize,
    bit: u32,
}

impl Bit {
    /// Returns the bits that distinguish the elements of these dimensions.
    fn all(dims: &[usize]) -> Vec<Self> {
        let mut stride = 1;
        let mut out = Vec::new();
        for size in dims.iter().rev().copied() {
            out.extend((0..usize::BITS - size.saturating_sub(1).leading_zeros()).map(|bit| Self {
                stride,
                size,
                bit,
            }));
            stride *= size.max(1);
        }
        out
    }
    fn of(self, element: usize) -> u64 {
        ((element / self.stride % self.size) >> self.bit & 1) as u64
    }
}

/// Combines the bits of an element into one number.
fn key(bits: &[Bit], element: usize) -> u64 {
    bits.iter().fold(0, |key, bit| key << 1 | bit.of(element))
}

/// Returns a distinct number between 0.5 and 1.5 for each element, so that effects of elements do not cancel.
fn share(element: usize) -> f64 {
    let mixed = (element as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    0.5 + (mixed >> 11) as f64 / (1u64 << 53) as f64
}

/// A function of `x` with one list of results, and the step of each element.
struct Moved<'f> {
    x: Array,
    steps: Vec<f64>,
    values: &'f dyn Fn(&Array) -> Vec<f64>,
}

impl Moved<'_> {
    /// Computes the results with each of these elements changed by a number of steps.
    fn at(&mut self, elements: &[usize], steps: &dyn Fn(usize) -> f64) -> Vec<f64> {
        let kept: Vec<f64> = elements.iter().map(|k| self.x.data[*k]).collect();
        for k in elements {
            self.x.data[*k] += self.steps[*k] * steps(*k);
        }
        let out = (self.values)(&self.x);
        for (k, kept) in elements.iter().zip(kept) {
            self.x.data[*k] = kept;
        }
        out
    }

    /// Returns which results depend on these elements.
    fn changed(&mut self, elements: &[usize], base: &[f64]) -> Vec<bool> {
        let (up, down) = (self.at(elements, &share), self.at(elements, &|k| -share(k)));
        let differ = |a: &f64, b: &f64| a.to_bits() != b.to_bits();
        let pairs = up.iter().zip(&down).zip(base);
        pairs.map(|((up, down), base)| differ(up, base) || differ(down, base)).collect()
    }

    /// Returns the bits by which elements are independent, and those bits of the elements on which each result depends.
    fn independent(&mut self, bits: &[Bit]) -> (Vec<Bit>, Vec<u64>) {
        let base = (self.values)(&self.x);
        let (mut found, mut labels) = (Vec::new(), vec![0; base.len()]);
        for bit in bits {
            let (ones, zeros): (Vec<usize>, Vec<usize>) =
                (0..self.steps.len()).partition(|k| bit.of(*k) == 1);
            let of_ones = self.changed(&ones, &base);
            let of_zeros = self.changed(&zeros, &base);
            if of_ones.iter().zip(&of_zeros).any(|(one, zero)| *one && *zero) {
                continue;
            }
            found.push(*bit);
            for (label, one) in labels.iter_mut().zip(of_ones) {
                *label = *label << 1 | u64::from(one);
            }
        }
        (found, labels)
    }
}

/// Computes the gradient in `x` of the sum of `weights` times the results, which `values` returns as one list. `step` is the step of an
/// element.
pub(super) fn gradient(
    x: &Array,
    step: &dyn Fn(f64) -> f64,
    weights: &[f64],
    values: &dyn Fn(&Array) -> Vec<f64>,
) -> Array {
    let steps: Vec<f64> = x.data.iter().map(|x| step(*x)).collect();
    let mut moved = Moved { x: x.clone(), steps, values };
    let n = x.data.len();
    let bits = Bit::all(x.shape.dims());
    // The detection takes four evaluations per bit.
    let (bits, labels) =
        if n > 2 * bits.len() { moved.independent(&bits) } else { (Vec::new(), vec![0; weights.len()]) };
    let mut results: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    labels
        .iter()
        .enumerate()
        .take(weights.len())
        .for_each(|(j, label)| results.entry(*label).or_default().push(j));
    // Elements with different keys are changed together.
    let mut seen: BTreeMap<u64, usize> = BTreeMap::new();
    let mut together: Vec<Vec<usize>> = Vec::new();
    for k in 0..n {
        let turn = seen.entry(key(&bits, k)).or_default();
        if together.len() == *turn {
            together.push(Vec::new());
        }
        together[*turn].push(k);
        *turn += 1;
    }
    let mut out = Array::zeros(x.shape.clone());
    for elements in together {
        let (up, down) = (moved.at(&elements, &|_| 1.0), moved.at(&elements, &|_| -1.0));
        for k in elements {
            let h = moved.steps[k];
            // One element at a time, because in a sum over all elements, large ones would hide the differences of small ones.
            let slope = |j: &usize| {
                let (u, d) = (up[*j], down[*j]);
                if u == d { 0.0 } else { (u - d) / (2.0 * h) * weights[*j] }
            };
            out.data[k] = results.get(&key(&bits, k)).into_iter().flatten().map(slope).sum();
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Checks that the quick gradient equals the gradient of one element at a time. Returns the number of evaluations.
    fn evaluations(dims: &[usize], values: impl Fn(&Array) -> Vec<f64>) -> usize {
        let x = Array::from_fn(dims, |k| (share(k) * 37.0).sin());
        let count = Cell::new(0);
        let counted = |x: &Array| {
            count.set(count.get() + 1);
            values(x)
        };
        let weights: Vec<f64> = (0..values(&x).len()).map(|j| share(j + 7) - 1.2).collect();
        let step = |x: f64| 1e-5 * x.abs().max(1.0);
        let got = gradient(&x, &step, &weights, &counted);
        for k in 0..x.data.len() {
            let h = step(x.data[k]);
            let at = |to: f64| {
                let mut x = x.clone();
                x.data[k] += to;
                values(&x)
            };
            let pairs = at(h).into_iter().zip(at(-h)).zip(&weights);
            let slopes = pairs.map(|((u, d), w)| if u == d { 0.0 } else { (u - d) / (2.0 * h) * w });
            assert_eq!(got.data[k], slopes.sum::<f64>(), "element {k} of {dims:?}");
        }
        count.get()
    }

    #[test]
    fn elements_that_share_no_result_are_moved_together() {
        let alone = evaluations(&[19, 23], |x| x.data.iter().map(|v| v.exp()).collect());
        assert_eq!(alone, 1 + 4 * 10 + 2);
        let rows = evaluations(&[19, 5], |x| {
            x.rows().flat_map(|row| row.iter().map(|v| v / row.iter().map(|v| v * v).sum::<f64>())).collect()
        });
        assert_eq!(rows, 1 + 4 * 8 + 2 * 5);
        // Columns, and another order.
        let columns = evaluations(&[6, 33], |x| {
            (0..33).rev().map(|c| (0..6).map(|r| x.data[r * 33 + c].powi(2)).sum()).collect()
        });
        assert_eq!(columns, 1 + 4 * 9 + 2 * 6);
    }

    #[test]
    fn elements_that_share_a_result_are_not() {
        assert_eq!(evaluations(&[50], |x| vec![x.data.iter().map(|v| v * v).sum()]), 1 + 4 * 6 + 100);
        // Differences: equal changes of elements cancel.
        assert_eq!(evaluations(&[64], |x| x.data.windows(2).map(|w| w[0] - w[1]).collect()), 1 + 4 * 6 + 128);
        // The least of two equal elements depends only on a step downwards.
        let least = |x: &Array| {
            x.data.chunks(32).map(|c| c.iter().fold(9.0, |m: f64, v| m.min(v.max(0.5)))).collect()
        };
        evaluations(&[128], least);
        // A constant result, and no result.
        evaluations(&[40], |x| vec![x.data[3] + x.data[31], 4.0]);
        evaluations(&[40], |_| Vec::new());
        evaluations(&[0], |_| vec![1.0]);
        evaluations(&[1], |x| vec![x.data[0].sin()]);
    }
}
