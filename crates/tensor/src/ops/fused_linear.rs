//! A linear map fused with its neighbors in a decoder's block, in one launch for few rows. The neighbors are the norm before it, its bias, the
//! activation after it, plain or gated, and the residual stream that the result is added to. A decoding step is limited by launches and by reading
//! weights, and each fused operation saves a launch. With more rows, the separate operations run one after the other.

use super::feed_forward::{linear_add, linear_residual};
use super::gated::{Gate, gated};
use super::join::cat;
use super::layer_norm::{self, layer_norm};
use super::matmul::{Linear, MatmulProblem, Matrix, Norm, few_rows, linear};
use super::prelude::*;
use super::rms_norm::{RmsNorm, rms_norm};
use crate::quant::Blocks;
use crate::tape::gradients_of;

/// The norm of the last axis before a map.
#[derive(Clone, Copy)]
pub struct PreNorm<'a> {
    /// Gain (K).
    pub gamma: &'a Tensor,
    /// Bias (K) of a layer norm; [`None`] for a root-mean-square norm.
    pub beta: Option<&'a Tensor>,
    /// Whether the factor is 1 + gamma instead of gamma.
    pub unit_offset: bool,
    /// Added to the variance, or the mean of squares.
    pub eps: f32,
}

impl PreNorm<'_> {
    /// Runs the norm as a separate operation.
    ///
    /// # Errors
    /// Errors of the norm.
    pub fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let gamma = if self.unit_offset { self.gamma.add_scalar(1.0)? } else { self.gamma.clone() };
        match self.beta {
            Some(beta) => layer_norm(x, &gamma, beta, self.eps),
            None => rms_norm(x, &gamma, self.eps),
        }
    }
}

/// The operations fused with a linear map.
#[derive(Clone, Copy, Default)]
pub struct FusedOps<'a> {
    /// Norm of x.
    pub norm: Option<PreNorm<'a>>,
    /// Bias (N), or (2N) with a gate.
    pub bias: Option<&'a Tensor>,
    /// Activation of the map's result; with `true` the second half of the result multiplies the activation of the first.
    pub activation: Option<(Gate, bool)>,
    /// Residual of the result's shape, added last.
    pub residual: Option<&'a Tensor>,
}

/// Computes `act(norm(x) w + bias) + residual` `(.., N)`: x `(.., K)`, w `(K, N)`, or `(K, 2N)` with a gate.
///
/// # Errors
/// `Shape` if K, N or the axes before the last differ; `DType` if they are not floats of one type.
pub fn fused_linear(x: &Tensor, w: &Tensor, around: FusedOps<'_>) -> Result<Tensor> {
    let [gamma, beta, bias, residual] = around.tensors(x);
    FusedLinear::of(&around).apply([x, w, gamma, beta, bias, residual])
}

/// Computes the same with quantized weights (N, K), or (2N, K) with a gate: in one launch if a kernel supports the number of rows, otherwise by a
/// dense copy of the weights. With [`Activations::Int8`](crate::quant::Activations) the input of the product is rounded to bytes. No gradients.
///
/// # Errors
/// Errors of [`fused_linear`].
pub fn fused_linear_of_blocks(x: &Tensor, w: &Blocks, around: FusedOps<'_>) -> Result<Tensor> {
    if let (true, Some(norm)) = (w.in_planes(), around.norm) {
        return fused_linear_of_blocks(&norm.apply(x)?, w, FusedOps { norm: None, ..around });
    }
    let (op, [n, k]) = (FusedLinear::of(&around), w.dims());
    let inputs = around.tensors(x);
    let dims = op.check(x, [k, n], inputs)?;
    let y = Tensor::empty(x.device(), dims, x.dtype())?;
    let problem = MatmulProblem::new(Matrix::rows_of(x)?, Matrix::of_blocks(w), &[])?;
    let fused = few_rows::Fused { blocks: Some(w.stored()), ..op.fused(inputs) };
    match few_rows::run(&y, &problem, &fused)? {
        true => Ok(y),
        false => fused_linear(x, &w.dense(x.dtype())?.transpose(0, 1)?, around),
    }
}

/// Maps by several matrices of quantized weights (N, K), each with its own format, and concatenates the results. Operations after the map run
/// separately.
///
/// # Errors
/// Errors of [`fused_linear`]; `Shape` without a matrix.
pub fn fused_linear_of_parts(x: &Tensor, parts: &[Blocks], around: FusedOps<'_>) -> Result<Tensor> {
    let mut y = side_by_side(x, parts, FusedOps { activation: None, residual: None, ..around })?;
    if let Some((gate, by_gate)) = around.activation {
        y = if by_gate { gated(&y, gate)? } else { gate.apply(&y)? };
    }
    match around.residual {
        Some(residual) => residual.add(&y),
        None => Ok(y),
    }
}

fn side_by_side(x: &Tensor, parts: &[Blocks], around: FusedOps<'_>) -> Result<Tensor> {
    if let (true, Some(norm)) = (parts.iter().any(Blocks::in_planes), around.norm) {
        return side_by_side(&norm.apply(x)?, parts, FusedOps { norm: None, ..around });
    }
    let columns = parts.iter().map(|part| part.dims()[0]).sum();
    let mut dims = x.dims().to_vec();
    let (Some(last), Some(first)) = (dims.last_mut(), parts.first()) else {
        return Err(Error::shape(format!("fused_linear: x {} and {} matrices", x.shape(), parts.len())));
    };
    *last = columns;
    let y = Tensor::empty(x.device(), dims, x.dtype())?;
    let rows = y.reshape([y.count() / columns.max(1), columns])?;
    let (mut apart, mut at) = (Vec::new(), 0);
    for part in parts {
        let end = at + part.dims()[0];
        let bias = around.bias.map(|bias| bias.slice(0, at..end)).transpose()?;
        let around = FusedOps { bias: bias.as_ref(), ..around };
        let (op, inputs) = (FusedLinear::of(&around), around.tensors(x));
        op.check(x, [first.dims()[1], end - at], inputs)?;
        let fused = few_rows::Fused { blocks: Some(part.stored()), ..op.fused(inputs) };
        let problem = MatmulProblem::new(Matrix::rows_of(x)?, Matrix::of_blocks(part), &[])?;
        let within =
            apart.is_empty() && few_rows::run_columns(&rows.slice(1, at..end)?, columns, &problem, &fused)?;
        if !within {
            apart.push((at, fused_linear_of_blocks(x, part, around)?));
        }
        at = end;
    }
    match apart.first() {
        None => Ok(y),
        // Some kernels write separate results. If any does, all later parts do too, and the results before it are copied.
        Some((from, _)) => {
            let before = y.slice(-1, 0..*from)?;
            let all = (*from > 0).then_some(&before).into_iter().chain(apart.iter().map(|(_, y)| y));
            cat(&all.collect::<Vec<_>>(), -1)
        }
    }
}

impl<'a> FusedOps<'a> {
    /// Returns gamma, beta, bias and residual, with x as a placeholder for missing ones.
    fn tensors(&self, x: &'a Tensor) -> [&'a Tensor; 4] {
        let (gamma, beta) = self.norm.map_or((x, x), |n| (n.gamma, n.beta.unwrap_or(x)));
        [gamma, beta, self.bias.unwrap_or(x), self.residual.unwrap_or(x)]
    }
}

/// Names of activations; the last four are gates.
const ACTIVATIONS: [&str; 5] = ["none", Gate::NAMES[0], Gate::NAMES[1], Gate::NAMES[2], Gate::NAMES[3]];

/// The norm without its tensors.
#[derive(Clone, Copy)]
struct NormKind {
    /// Whether it is a layer norm.
    center: bool,
    unit_offset: bool,
    eps: f32,
}

/// Operation of [`fused_linear()`]. Its inputs are x, w, gamma, beta, bias and residual; unused inputs are arbitrary tensors.
#[derive(Clone)]
pub struct FusedLinear {
    norm: Option<NormKind>,
    bias: bool,
    activation: Option<(Gate, bool)>,
    residual: bool,
}

impl FusedLinear {
    /// Builds the operation with all inputs and SiLU's gate.
    #[cfg(test)]
    pub(super) fn gated_after_layer_norm(eps: f32) -> Self {
        let norm = Some(NormKind { center: true, unit_offset: false, eps });
        Self { norm, bias: true, activation: Some((Gate::Silu, true)), residual: true }
    }

    fn of(around: &FusedOps<'_>) -> Self {
        Self {
            norm: around.norm.map(|n| NormKind {
                center: n.beta.is_some(),
                unit_offset: n.unit_offset,
                eps: n.eps,
            }),
            bias: around.bias.is_some(),
            activation: around.activation,
            residual: around.residual.is_some(),
        }
    }

    /// Returns the fused operations for the kernels of few rows.
    fn fused<'a>(&self, [gamma, beta, bias, residual]: [&'a Tensor; 4]) -> few_rows::Fused<'a> {
        let norm = |n: NormKind| Norm {
            gamma,
            beta: n.center.then_some(beta),
            unit_offset: n.unit_offset,
            eps: n.eps,
        };
        few_rows::Fused {
            norm: self.norm.map(norm),
            bias: self.bias.then_some(bias),
            activation: self.activation,
            residual: self.residual.then_some(residual),
            ..few_rows::Fused::NONE
        }
    }

    fn parts(&self) -> usize {
        if matches!(self.activation, Some((_, true))) { 2 } else { 1 }
    }

    /// Checks x, w `(K, columns)` and the fused operands, and returns the result's shape.
    fn check(
        &self,
        x: &Tensor,
        [k, columns]: [usize; 2],
        [gamma, beta, bias, residual]: [&Tensor; 4],
    ) -> Result<Vec<usize>> {
        let op = Self::NAME;
        check::same_float(op, &[("x", x)])?;
        let w = Shape::from([k, columns]);
        if x.shape().rank() == 0 || x.shape().last() != k || !columns.is_multiple_of(self.parts()) {
            return Err(Error::shape(format!(
                "{op}: x {} and w {}, expected x (.., {k}){}",
                x.shape(),
                w,
                if self.parts() == 2 { " and an even number of columns, gates before values" } else { "" }
            )));
        }
        let mut dims = x.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = columns / self.parts();
        }
        let wanted = |name: &str, t: &Tensor, expected: &[usize]| match t.dims() == expected {
            true => check::same_float(op, &[("x", x), (name, t)]),
            false => Err(Error::shape(format!(
                "{op}: {name} has shape {}, expected {}, with x {} and w {}",
                t.shape(),
                Shape::from(expected),
                x.shape(),
                w
            ))),
        };
        if let Some(norm) = self.norm {
            wanted("gamma", gamma, &[k])?;
            if norm.center {
                wanted("beta", beta, &[k])?;
            }
        }
        if self.bias {
            wanted("bias", bias, &[columns])?;
        }
        if self.residual {
            wanted("residual", residual, &dims)?;
        }
        Ok(dims)
    }

    fn normalised(&self, x: &Tensor, [gamma, beta]: [&Tensor; 2]) -> Result<Tensor> {
        match self.norm {
            None => Ok(x.clone()),
            Some(NormKind { center, unit_offset, eps }) => {
                PreNorm { gamma, beta: center.then_some(beta), unit_offset, eps }.apply(x)
            }
        }
    }

    /// Computes the result by separate operations.
    fn composed(&self, [x, w, gamma, beta, bias, residual]: [&Tensor; 6]) -> Result<Tensor> {
        let h = self.normalised(x, [gamma, beta])?;
        if self.activation.is_none() && self.residual {
            return if self.bias {
                linear_add(residual, &h, w, bias)
            } else {
                linear_residual(residual, &h, w)
            };
        }
        let h = linear(&h, w, self.bias.then_some(bias))?;
        let h = match self.activation {
            None => h,
            Some((gate, true)) => gated(&h, gate)?,
            Some((gate, false)) => gate.apply(&h)?,
        };
        if self.residual { residual.add(&h) } else { Ok(h) }
    }
}

impl Op<6> for FusedLinear {
    const NAME: &'static str = "fused_linear";
    type Saved = ();
    fn forward(&self, inputs: [&Tensor; 6]) -> Result<(Tensor, ())> {
        let [x, w, gamma, beta, bias, residual] = inputs;
        check::same_float(Self::NAME, &[("x", x), ("w", w)])?;
        let sizes = w.dims2().map_err(|e| e.context("fused_linear: w"))?;
        let around = [gamma, beta, bias, residual];
        let dims = self.check(x, sizes, around)?;
        let y = Tensor::empty(x.device(), dims, x.dtype())?;
        let problem = MatmulProblem::new(Matrix::rows_of(x)?, Matrix::of(Self::NAME, "w", w)?, &[])?;
        let fused = self.fused(around);
        let done = if few_rows::norm_apart(&y, &problem, &fused) {
            let rows = self.normalised(x, [gamma, beta])?;
            let problem = MatmulProblem::new(Matrix::rows_of(&rows)?, problem.b, &[])?;
            few_rows::run(&y, &problem, &few_rows::Fused { norm: None, ..fused })?
        } else {
            few_rows::run(&y, &problem, &fused)?
        };
        if done { Ok((y, ())) } else { Ok((self.composed(inputs)?, ())) }
    }
    fn backward(&self, inputs: [&Tensor; 6], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 6]> {
        gradients_of(inputs, dy, |inputs| self.composed(inputs))
    }
    fn reference(&self, [x, w, gamma, beta, bias, residual]: [&Array; 6]) -> Array {
        let h = match self.norm {
            None => x.clone(),
            Some(norm) => {
                let gamma = if norm.unit_offset { gamma.map(|v| v + 1.0) } else { gamma.clone() };
                match norm.center {
                    true => layer_norm::reference(norm.eps, [x, &gamma, beta]),
                    false => RmsNorm { eps: norm.eps }.reference([x, &gamma]),
                }
            }
        };
        let none = Array::zeros([w.shape.last()]);
        let h = Linear.reference([&h, w, if self.bias { bias } else { &none }]);
        let h = match self.activation {
            None => h,
            Some((gate, false)) => h.map(|v| gate.in_f64(v)),
            Some((gate, true)) => {
                let n = h.shape.last() / 2;
                let mut dims = h.shape.dims().to_vec();
                if let Some(last) = dims.last_mut() {
                    *last = n;
                }
                let rows = h
                    .rows()
                    .flat_map(|row| (0..n).map(|i| gate.in_f64(row[i]) * row[n + i]).collect::<Vec<_>>());
                Array::new(dims, rows.collect())
            }
        };
        if self.residual { residual.zip(&h, &residual.shape, |a, b| a + b) } else { h }
    }
    fn calls() -> Vec<Call> {
        let doc = "A linear map fused with its neighbors in a decoder's block: x `(.., K)`, w `(K, N)` → `act(norm(x) w + bias) + residual` `(.., \
                   N)`. `gamma` `(K)` selects a root-mean-square norm, with `beta` a layer norm; with `unit_offset` the factor is 1 + gamma. With \
                   `by_gate` w is `(K, 2N)`, and the activation of the first half multiplies the second half.";
        let call = Call::new(Self::NAME, doc).inputs(&["x", "w"]);
        let call = call.optional_inputs(&["gamma", "beta", "bias", "residual"]).default("eps", 1e-5);
        let call = call.default("unit_offset", false).choice("activation", &ACTIVATIONS);
        vec![call.default("by_gate", false).run(|a| {
            let ([x, w], activation) = (a.inputs()?, a.get::<String>("activation")?);
            let (beta, unit_offset, eps) = (a.optional("beta"), a.get("unit_offset")?, a.get("eps")?);
            let norm = a.optional("gamma").map(|gamma| PreNorm { gamma, beta, unit_offset, eps });
            let by_gate = a.get("by_gate")?;
            let activation = match activation.as_str() {
                "none" => None,
                gate => Some((Gate::named(gate)?, by_gate)),
            };
            let (bias, residual) = (a.optional("bias"), a.optional("residual"));
            fused_linear(x, w, FusedOps { norm, bias, activation, residual })
        })]
    }
    fn attributes(&self) -> Attributes {
        let NormKind { unit_offset, eps, .. } =
            self.norm.unwrap_or(NormKind { center: false, unit_offset: false, eps: 1e-5 });
        let (activation, by_gate) =
            self.activation.map_or(("none", false), |(gate, by_gate)| (gate.name(), by_gate));
        vec![
            ("eps", eps.into()),
            ("unit_offset", unit_offset.into()),
            ("activation", activation.into()),
            ("by_gate", by_gate.into()),
        ]
    }
    fn given<'a>(&self, inputs: [&'a Tensor; 6]) -> Vec<Option<&'a Tensor>> {
        let centred = self.norm.is_some_and(|norm| norm.center);
        let used = [true, true, self.norm.is_some(), centred, self.bias, self.residual];
        inputs.into_iter().zip(used).map(|(input, used)| used.then_some(input)).collect()
    }
    fn samples() -> Vec<Sample<Self, 6>> {
        let rms = Some(NormKind { center: false, unit_offset: false, eps: 1e-6 });
        let offset = Some(NormKind { center: false, unit_offset: true, eps: 1e-6 });
        let layer = Some(NormKind { center: true, unit_offset: false, eps: 1e-5 });
        let plain = Self { norm: None, bias: false, activation: None, residual: false };
        let sample = |op: Self, x: &[usize], n: usize| {
            let (k, mut y) = (x[x.len() - 1], x.to_vec());
            y[x.len() - 1] = n;
            let columns = n * op.parts();
            let inputs = [x, &[k, columns][..], &[k], &[k], &[columns], &y].map(SampleInput::normal);
            Sample::new(op, inputs).sums(16 + k)
        };
        let qkv = Self { norm: layer, bias: true, ..plain.clone() };
        let up = Self { norm: rms, activation: Some((Gate::Silu, true)), ..plain.clone() };
        let act = |gate, gated| Some((gate, gated));
        let mut far = sample(Self { residual: true, ..qkv.clone() }, &[2, 12], 5);
        far.inputs[0] = SampleInput::uniform(&[2, 12], -1e4, 1e4);
        vec![
            sample(Self { residual: true, ..qkv.clone() }, &[2, 37], 70),
            sample(up.clone(), &[1, 3, 40], 24),
            sample(
                Self { norm: layer, bias: true, activation: act(Gate::GeluTanh, false), residual: false },
                &[1, 64],
                40,
            ),
            sample(
                Self { norm: offset, bias: true, activation: act(Gate::GeluTanh, true), residual: true },
                &[2, 20],
                9,
            )
            .light(),
            sample(Self { activation: act(Gate::Gelu, false), ..plain.clone() }, &[1, 33], 300).light(),
            sample(Self { activation: act(Gate::Relu, true), bias: true, ..plain.clone() }, &[8, 16], 33)
                .light(),
            sample(Self { activation: act(Gate::Gelu, true), norm: rms, ..plain.clone() }, &[5, 18], 12)
                .light(),
            sample(Self { activation: act(Gate::Silu, false), residual: true, ..plain.clone() }, &[7], 10)
                .light(),
            sample(Self { residual: true, bias: true, ..plain.clone() }, &[1, 1100], 6).light(),
            sample(Self { norm: rms, ..plain.clone() }, &[3, 5000], 4)
                .named("more than a group's local memory")
                .light(),
            sample(up, &[3, 5, 16], 12).named("many rows").light(),
            sample(Self { residual: true, ..qkv }, &[20, 16], 12).named("many rows").light(),
            far.extreme().light(),
            sample(plain.clone(), &[1, 1], 1).light(),
            sample(Self { bias: true, ..plain }, &[0, 4], 3).light(),
        ]
    }
}
