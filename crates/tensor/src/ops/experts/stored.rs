//! Experts whose matrices may be quantized blocks, for inference. Few rows are multiplied one by one by their matrices, without sorting. More rows
//! are sorted by expert first. They are then multiplied by the blocks directly: in panels on CPUs and in planes on tensor cores, or by dense copies
//! on other devices.

use super::super::matmul::few_rows::{self, Fused, Stack};
use super::super::matmul::{MatmulProblem, Matrix};
use super::*;
use crate::quant::Blocks;

/// One kind of matrix of all experts; the experts' rows are concatenated.
#[derive(Clone, Copy, Debug)]
pub enum ExpertMap<'a> {
    /// Dense matrices (E, N, K).
    Dense(&'a Tensor),
    /// Blocks (E N, K).
    Blocks(&'a Blocks),
}

/// Computes [`experts()`](super::experts()) off the tape with matrices that may be quantized: gates and values `(E, 2H, C)`, gates before values,
/// and down maps `(E, C, H)`.
///
/// # Errors
/// Errors of [`experts()`](super::experts()).
pub fn experts_of_blocks(
    x: &Tensor,
    ids: &Tensor,
    weights: &Tensor,
    [gate_up, down]: [ExpertMap<'_>; 2],
    gate: Gate,
) -> Result<Tensor> {
    let c = x.shape().last();
    let [[gates, width], [backs, h]] = [gate_up.dims()?, down.dims()?];
    let e = backs.checked_div(c).unwrap_or(0);
    if x.shape().rank() == 0 || e == 0 || width != c || gates != 2 * e * h || backs != e * c {
        return Err(Error::shape(format!(
            "experts: x {}, gate_up {gate_up:?} and down {down:?}, expected x (.., C), (E, 2H, C) and (E, C, H)",
            x.shape()
        )));
    }
    check_operands([x, ids, weights], e)?;
    let (x, ids, weights) = (x.contiguous()?, ids.contiguous()?, weights.contiguous()?);
    let (y, slots) = (x.empty_like()?, ids.shape().last());
    let pairs = ids.count();
    if pairs == 0 || y.count() == 0 {
        y.device().fill(y.storage(), &[0])?;
        return Ok(y);
    }
    let lines = x.reshape([x.count() / c.max(1), c])?;
    let by_row = |lines: &Tensor, map: ExpertMap<'_>, slots: usize, act: Option<Gate>| {
        let stack = Stack::ByRow { ids: &ids, matrices: e, slots };
        stacked(lines, map, stack, [pairs, e], act)
    };
    if [gate_up, down].iter().all(|map| map.takes_rows(pairs, e, x.dtype()))
        && let Some(hidden) = by_row(&lines, gate_up, slots, Some(gate))?
        && let Some(rows) = by_row(&hidden, down, 1, None)?
    {
        combine([&rows, &y], Some(&weights), None, slots)?;
        return Ok(y);
    }
    let dispatch = Dispatch::new(&ids, e)?;
    let hidden = dispatch.rows(&lines, Some(&dispatch.tokens), gate_up, Some(gate))?;
    let rows = dispatch.rows(&hidden, None, down, None)?;
    dispatch.combine(&rows, Some(&weights), &y)?;
    Ok(y)
}

impl ExpertMap<'_> {
    /// Returns the rows of all experts, and the columns.
    fn dims(&self) -> Result<[usize; 2]> {
        match self {
            Self::Dense(w) => w.dims3().map(|[e, n, k]| [e * n, k]).map_err(|e| e.context("experts")),
            Self::Blocks(w) => Ok(w.dims()),
        }
    }
    /// Returns whether `pairs` rows are better multiplied one by one. Each then reads a matrix, while sorted rows read every matrix once, and
    /// blocks need a dense copy, which is written and read. Panels are multiplied directly for any number of rows.
    fn takes_rows(&self, pairs: usize, experts: usize, dtype: DType) -> bool {
        match self {
            Self::Dense(_) => pairs <= experts,
            Self::Blocks(w) => {
                let [rows, columns] = w.dims();
                let all = w.bytes() + 2 * rows * columns * dtype.size();
                !w.in_panels()
                    && !on_tensor_cores(w, dtype)
                    && pairs.saturating_mul(w.bytes()) <= experts.saturating_mul(all)
            }
        }
    }
}

/// Returns whether tensor cores multiply sorted rows of a type by these blocks directly.
fn on_tensor_cores(w: &Blocks, dtype: DType) -> bool {
    w.in_planes() && dtype != DType::F32
}

/// Multiplies rows by the matrices of a stack, with gates and values combined by the activation, (rows, N). Returns `None` if no kernel here
/// supports it.
fn stacked(
    lines: &Tensor,
    map: ExpertMap<'_>,
    stack: Stack<'_>,
    [rows, experts]: [usize; 2],
    act: Option<Gate>,
) -> Result<Option<Tensor>> {
    let (b, blocks) = match map {
        ExpertMap::Dense(w) => (Matrix::rows_of(w)?.transposed(), None),
        ExpertMap::Blocks(w) => (Matrix::of_blocks(w), Some(w.stored())),
    };
    let fused = Fused { activation: act.map(|gate| (gate, true)), blocks, stack: Some(stack), ..Fused::NONE };
    let n = map.dims()?[0] / experts;
    let c = Tensor::empty(lines.device(), [rows, n / fused.parts()], lines.dtype())?;
    // Several rows of C may read the same line.
    let a = Matrix { row_stride: lines.shape().last(), ..Matrix::rows_of(lines)? };
    let problem = MatmulProblem { m: rows, n, ..MatmulProblem::new(a, b, &[])? };
    Ok(few_rows::run(&c, &problem, &fused)?.then_some(c))
}

impl Dispatch {
    /// Multiplies rows in order, from `lines` or from the lines in `index`, by the experts' matrices.
    fn rows(
        &self,
        lines: &Tensor,
        index: Option<&Tensor>,
        map: ExpertMap<'_>,
        act: Option<Gate>,
    ) -> Result<Tensor> {
        let (experts, count) = (self.groups.experts, self.groups.rows);
        if let ExpertMap::Blocks(w) = map
            && (w.in_panels() || w.in_planes())
        {
            let stack = Stack::Sorted { groups: &self.groups, lines: index };
            if let Some(rows) = stacked(lines, map, stack, [count, experts], act)? {
                return Ok(rows);
            }
        }
        let dense = match map {
            ExpertMap::Dense(w) => w.contiguous()?,
            ExpertMap::Blocks(w) => {
                let [rows, columns] = w.dims();
                w.dense(lines.dtype())?.reshape([experts, rows / experts.max(1), columns])?
            }
        };
        let rows = grouped::rows(&self.groups, GroupedRows { lines, index }, &dense, false)?;
        match act {
            Some(gate) => gated(&rows, gate),
            None => Ok(rows),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::experts;
    use super::*;
    use crate::quant::{Activations, Format};
    use crate::random::Generator;
    use crate::suite::test_device;
    use netcl_device::Settings;

    fn normal(device: &Device, dims: &[usize], seed: u64) -> Tensor {
        Tensor::normal(device, dims, 0.0, 1.0, DType::F32, &mut Generator::new(seed)).unwrap()
    }

    /// Returns the same rows as blocks and dequantized.
    fn stored(
        device: &Device,
        (format, order): (&'static Format, Order),
        [e, n, k]: [usize; 3],
        seed: u64,
    ) -> (Blocks, Tensor) {
        let values = normal(device, &[e * n, k], seed).to_vec().unwrap();
        let mut bytes = vec![0; format.size(values.len()).unwrap()];
        format.quantise(&values, k, None, &mut bytes).unwrap();
        let dense = format.dequantised(&bytes, values.len()).unwrap();
        let dense = Tensor::from_f32(device, [e, n, k], &dense, DType::F32).unwrap();
        let blocks = match order {
            Order::Planes => Blocks::of_planes(device, format, [e * n, k], &bytes),
            Order::Usual(activations) => {
                Blocks::with_activations(device, format, [e * n, k], &bytes, activations)
            }
        };
        (blocks.unwrap(), dense)
    }

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Order {
        Usual(Activations),
        Planes,
    }

    /// Compares one text's step, a batch and a prompt, in every storage order, with the operation on dense matrices. Some ids are invalid.
    #[test]
    fn blocks_are_multiplied_as_what_they_stand_for() {
        let orders = [Order::Usual(Activations::Float), Order::Usual(Activations::Int8), Order::Planes];
        let sim = Device::open("sim", &Settings::default()).unwrap();
        for (device, formats) in [(test_device().unwrap(), &["Q4_0", "Q6_K"][..]), (sim, &["Q4_1"])] {
            // Oclgrind would take an hour for the full sizes. At 40 tokens, sorted rows still take the path of prompts.
            let interpreted = device.settings().exact_memory && !device.capabilities().simulated;
            let ([e, c, h], prompt) = if interpreted { ([5, 256, 256], 40) } else { ([5, 256, 512], 90) };
            for (i, format) in formats.iter().enumerate() {
                let format = Format::named(format).unwrap();
                for order in orders {
                    if order == Order::Planes && !format.has_planes(c) {
                        continue;
                    }
                    let dtype = if i == 0 { DType::F32 } else { DType::F16 };
                    let (gates, dense_gates) = stored(&device, (format, order), [e, 2 * h, c], 1);
                    let (back, dense_back) = stored(&device, (format, order), [e, c, h], 2);
                    let tokens = if i == 0 { vec![1, 3, prompt] } else { vec![2] };
                    for tokens in &tokens {
                        let ids: Vec<u32> = (0..2 * tokens).map(|p| ((p * p + 1) % (e + 1)) as u32).collect();
                        let ids = Tensor::from_u32(&device, [*tokens, 2], &ids).unwrap();
                        let (x, weights) =
                            (normal(&device, &[*tokens, c], 3), normal(&device, &[*tokens, 2], 4));
                        let expected =
                            experts(&x, &ids, &weights, [&dense_gates, &dense_back], Gate::Silu).unwrap();
                        let (x, weights) = (x.to_dtype(dtype).unwrap(), weights.to_dtype(dtype).unwrap());
                        let maps = [
                            [ExpertMap::Blocks(&gates), ExpertMap::Blocks(&back)],
                            [ExpertMap::Blocks(&gates), ExpertMap::Dense(&dense_back)],
                            [ExpertMap::Dense(&dense_gates), ExpertMap::Blocks(&back)],
                        ];
                        let expected = expected.to_vec().unwrap();
                        let most = expected.iter().fold(0f32, |most, v| most.max(v.abs()));
                        for maps in &maps[..if i == 0 { 3 } else { 1 }] {
                            let y = experts_of_blocks(&x, &ids, &weights, *maps, Gate::Silu).unwrap();
                            // Rounding to bytes loses 1/254 of the largest of 32 in each of two products.
                            let bound = match (order, dtype) {
                                (Order::Usual(Activations::Float), DType::F32) => 1e-5,
                                (Order::Usual(Activations::Float), _) => 2e-3,
                                _ => 2e-2,
                            };
                            for (got, expected) in y.to_vec().unwrap().iter().zip(&expected) {
                                assert!(
                                    (got - expected).abs() <= bound * most,
                                    "{format} {order:?}, {tokens} tokens: {got}, expected {expected}, largest {most}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn other_sizes_are_refused() {
        let device = test_device().unwrap();
        let order = (Format::named("Q8_0").unwrap(), Order::Usual(Activations::Float));
        let (gates, _) = stored(&device, order, [3, 64, 64], 1);
        let (back, _) = stored(&device, order, [3, 64, 32], 2);
        let ids = Tensor::from_u32(&device, [2, 2], &[0, 1, 2, 0]).unwrap();
        let y = |x: &[usize], weights: &[usize], maps: [&Blocks; 2]| {
            let (x, weights) = (normal(&device, x, 3), normal(&device, weights, 4));
            experts_of_blocks(&x, &ids, &weights, maps.map(ExpertMap::Blocks), Gate::Silu).map(drop)
        };
        y(&[2, 64], &[2, 2], [&gates, &back]).unwrap();
        for (x, weights, maps) in [
            (&[2, 32][..], &[2, 2][..], [&gates, &back]),
            (&[2, 64], &[2, 2], [&back, &gates]),
            (&[2, 64], &[2, 2], [&gates, &gates]),
            (&[3, 64], &[2, 2], [&gates, &back]),
            (&[2, 64], &[2, 3], [&gates, &back]),
        ] {
            let e = y(x, weights, maps).unwrap_err().to_string();
            assert!(e.contains("experts: ") && e.contains("expected"), "{e}");
        }
        let none = |dims: [usize; 3]| Tensor::zeros(&device, dims, DType::F32).unwrap();
        let (gates, back) = (none([0, 64, 64]), none([0, 64, 32]));
        let (x, weights) = (normal(&device, &[2, 64], 3), normal(&device, &[2, 2], 4));
        let maps = [ExpertMap::Dense(&gates), ExpertMap::Dense(&back)];
        let e = experts_of_blocks(&x, &ids, &weights, maps, Gate::Silu).unwrap_err().to_string();
        assert!(e.contains("experts: ") && e.contains("expected"), "no experts: {e}");
    }
}
