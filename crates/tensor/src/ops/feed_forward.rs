//! The operations between the norms of a transformer's block, with fewer passes over memory: a linear map into the residual stream, and the two
//! linear maps around a GELU.
//!
//! If the matrix kernel has an epilogue for it, the GELU, its derivative and the residual are computed before a tile leaves the registers.
//! Otherwise element-wise kernels compute them, with the same result as [`linear`](super::matmul::linear) and separate operations.

use super::elementwise::UNARY;
use super::map::map;
use super::matmul::{
    Epilogue, EpilogueInputs, MatmulProblem, Matrix, gelu_recomputed, product, run, weight_gradients,
};
use super::prelude::*;

/// Computes `residual + x w + bias` `(.., N)`: residual `(.., N)`, x `(.., K)`, w `(K, N)`, bias `(N)`.
///
/// # Errors
/// `Shape` if K, N or the axes before the last differ; `DType` if they are not floats of one type.
pub fn linear_add(residual: &Tensor, x: &Tensor, w: &Tensor, bias: &Tensor) -> Result<Tensor> {
    LinearAdd.apply([residual, x, w, bias])
}

/// Computes `residual + x w` `(.., N)`: residual `(.., N)`, x `(.., K)`, w `(K, N)`.
///
/// # Errors
/// Errors of [`linear_add`].
pub fn linear_residual(residual: &Tensor, x: &Tensor, w: &Tensor) -> Result<Tensor> {
    LinearResidual.apply([residual, x, w])
}

/// Inner (w1 `(K, H)`, b1 `(H)`) and outer map (w2 `(H, N)`, b2 `(N)`) of a feed-forward layer.
pub type Maps<'a> = [&'a Tensor; 4];

/// Computes `residual + gelu(x w1 + b1) w2 + b2` `(.., N)`, with GELU by its tanh approximation: residual `(.., N)`, x `(.., K)`.
///
/// # Errors
/// `Shape` if K, H, N or the axes before the last differ; `DType` if they are not floats of one type.
pub fn feed_forward(residual: &Tensor, x: &Tensor, [w1, b1, w2, b2]: Maps<'_>) -> Result<Tensor> {
    FeedForward { recompute: false }.apply([residual, x, w1, b1, w2, b2])
}

/// Computes the same, but the backward recomputes the GELU's result from its input. This saves a tensor (R, H), and the bits are the same.
///
/// # Errors
/// Errors of [`feed_forward`].
pub fn feed_forward_again(residual: &Tensor, x: &Tensor, [w1, b1, w2, b2]: Maps<'_>) -> Result<Tensor> {
    FeedForward { recompute: true }.apply([residual, x, w1, b1, w2, b2])
}

fn check_map(op: &str, x: (&str, &[usize]), w: (&str, &Tensor), bias: (&str, &Tensor)) -> Result<usize> {
    let n = check_weight(op, x, w)?;
    if bias.1.dims() != [n] {
        return Err(Error::shape(format!(
            "{op}: {} has shape {}, expected [{n}], the last axis of {} {}",
            bias.0,
            bias.1.shape(),
            w.0,
            w.1.shape()
        )));
    }
    Ok(n)
}

fn check_weight(op: &str, x: (&str, &[usize]), w: (&str, &Tensor)) -> Result<usize> {
    let [k, n] = w.1.dims2().map_err(|e| e.context(format!("{op}: {}", w.0)))?;
    if x.1.last() != Some(&k) {
        return Err(Error::shape(format!(
            "{op}: the last axis of {} {} is {}, expected {k}, the first axis of {} {}",
            x.0,
            Shape::from(x.1),
            x.1.last().copied().unwrap_or(0),
            w.0,
            w.1.shape()
        )));
    }
    Ok(n)
}

fn check_residual(op: &str, residual: &Tensor, x: &Tensor, n: usize) -> Result<()> {
    let mut expected = x.dims().to_vec();
    if let Some(last) = expected.last_mut() {
        *last = n;
    }
    if residual.dims() == expected {
        return Ok(());
    }
    Err(Error::shape(format!(
        "{op}: residual has shape {}, expected {}, the shape of the result",
        residual.shape(),
        Shape::from(expected)
    )))
}

/// Computes `residual + x w + bias` in the residual's shape.
fn mapped(residual: &Tensor, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let y = Tensor::empty(x.device(), residual.shape(), x.dtype())?;
    let problem = MatmulProblem::new(Matrix::rows_of(x)?, Matrix::of("linear", "w", w)?, &[])?;
    let residual = match residual.detach().contiguous()? {
        // Some devices cannot bind a sub-buffer at an arbitrary offset.
        x if x.layout().offset > 0 => map("x0", &[&x], &[], x.shape(), x.dtype())?,
        x => x,
    };
    run(&y, &problem, &Epilogue { bias, aux: EpilogueInputs::Residual(&residual), ..Epilogue::NONE }, false)?;
    Ok(y)
}

/// Computes the gradient of x and, if requested, those of the map's weight and bias.
fn map_gradients(
    x: &Tensor,
    w: &Tensor,
    bias: &Tensor,
    dy: &Matrix,
) -> Result<(Option<Tensor>, Option<Tensor>)> {
    if !w.requires_grad() && !bias.requires_grad() {
        return Ok((None, None));
    }
    let (dw, db) = weight_gradients(Matrix::rows_of(x)?, dy.clone(), w, bias.requires_grad())?;
    Ok((Some(dw), db))
}

fn input_gradient(x: &Tensor, w: &Tensor, dy: &Matrix) -> Result<Option<Tensor>> {
    if !x.requires_grad() {
        return Ok(None);
    }
    let w = Matrix::of("linear", "w", w)?.transposed();
    product(dy.clone(), w, &Epilogue::NONE)?.reshape(x.shape()).map(Some)
}

/// Operation of [`linear_add`].
#[derive(Clone)]
pub struct LinearAdd;

impl Op<4> for LinearAdd {
    const NAME: &'static str = "linear_add";
    type Saved = ();
    fn forward(&self, [residual, x, w, bias]: [&Tensor; 4]) -> Result<(Tensor, ())> {
        check::same_float("linear_add", &[("x", x), ("w", w), ("bias", bias), ("residual", residual)])?;
        let n = check_map("linear_add", ("x", x.dims()), ("w", w), ("bias", bias))?;
        check_residual("linear_add", residual, x, n)?;
        Ok((mapped(residual, x, w, Some(bias))?, ()))
    }
    fn backward(&self, [_, x, w, bias]: [&Tensor; 4], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 4]> {
        let rows = Matrix::rows_of(dy)?;
        let dx = input_gradient(x, w, &rows)?;
        let (dw, db) = map_gradients(x, w, bias, &rows)?;
        Ok([Some(dy.clone()), dx, dw, db])
    }
    fn reference(&self, [residual, x, w, bias]: [&Array; 4]) -> Array {
        let y = super::matmul::Linear.reference([x, w, bias]);
        residual.zip(&y, &residual.shape, |a, b| a + b)
    }
    fn calls() -> Vec<Call> {
        let doc = "Linear map into a residual stream: residual `(.., N)`, x `(.., K)`, w `(K, N)`, bias `(N)` → `residual + x w + bias`.";
        vec![Call::new(Self::NAME, doc).inputs(&["residual", "x", "w", "bias"]).run(|a| {
            let [residual, x, w, bias] = a.inputs()?;
            linear_add(residual, x, w, bias)
        })]
    }
    fn samples() -> Vec<Sample<Self, 4>> {
        let sample = |x: &[usize], n: usize| {
            let (k, mut y) = (x[x.len() - 1], x.to_vec());
            y[x.len() - 1] = n;
            let inputs = [&y, x, &[k, n][..], &[n]].map(SampleInput::normal);
            Sample::new(Self, inputs).sums(x.iter().product::<usize>().min(64))
        };
        vec![
            sample(&[5, 7], 3),
            sample(&[2, 12, 40], 16),
            Sample::new(
                Self,
                [
                    SampleInput::uniform(&[5, 3], -1e12, 1e12),
                    SampleInput::uniform(&[5, 7], -1e6, 1e6),
                    SampleInput::uniform(&[7, 3], -1e6, 1e6),
                    SampleInput::uniform(&[3], -1e12, 1e12),
                ],
            )
            .sums(35)
            .extreme()
            .light(),
            sample(&[6], 4).light(),
            sample(&[1, 1], 1).light(),
            sample(&[0, 4], 3).light(),
        ]
    }
}

/// Operation of [`linear_residual`].
#[derive(Clone)]
pub struct LinearResidual;

impl Op<3> for LinearResidual {
    const NAME: &'static str = "linear_residual";
    type Saved = ();
    fn forward(&self, [residual, x, w]: [&Tensor; 3]) -> Result<(Tensor, ())> {
        check::same_float(Self::NAME, &[("x", x), ("w", w), ("residual", residual)])?;
        let n = check_weight(Self::NAME, ("x", x.dims()), ("w", w))?;
        check_residual(Self::NAME, residual, x, n)?;
        Ok((mapped(residual, x, w, None)?, ()))
    }
    fn backward(&self, [_, x, w]: [&Tensor; 3], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let rows = Matrix::rows_of(dy)?;
        let dx = input_gradient(x, w, &rows)?;
        let dw = match w.requires_grad() {
            true => Some(weight_gradients(Matrix::rows_of(x)?, rows, w, false)?.0),
            false => None,
        };
        Ok([Some(dy.clone()), dx, dw])
    }
    fn reference(&self, [residual, x, w]: [&Array; 3]) -> Array {
        let none = Array::zeros([w.shape.last()]);
        LinearAdd.reference([residual, x, w, &none])
    }
    fn calls() -> Vec<Call> {
        let doc = "Linear map into a residual stream: residual `(.., N)`, x `(.., K)`, w `(K, N)` → `residual + x w`.";
        vec![Call::new(Self::NAME, doc).inputs(&["residual", "x", "w"]).run(|a| {
            let [residual, x, w] = a.inputs()?;
            linear_residual(residual, x, w)
        })]
    }
    fn samples() -> Vec<Sample<Self, 3>> {
        let sample = |x: &[usize], n: usize| {
            let (k, mut y) = (x[x.len() - 1], x.to_vec());
            y[x.len() - 1] = n;
            let inputs = [&y, x, &[k, n][..]].map(SampleInput::normal);
            Sample::new(Self, inputs).sums(x.iter().product::<usize>().min(64))
        };
        vec![
            sample(&[5, 7], 3),
            Sample::new(
                Self,
                [
                    SampleInput::uniform(&[5, 3], -1e12, 1e12),
                    SampleInput::uniform(&[5, 7], -1e6, 1e6),
                    SampleInput::uniform(&[7, 3], -1e6, 1e6),
                ],
            )
            .sums(35)
            .extreme()
            .light(),
            sample(&[2, 12, 40], 16).light(),
            sample(&[1, 1], 1).light(),
            sample(&[0, 4], 3).light(),
        ]
    }
}

/// Operation of [`feed_forward`].
#[derive(Clone)]
pub struct FeedForward {
    /// Whether the backward recomputes the GELU's result.
    pub(super) recompute: bool,
}

impl Op<6> for FeedForward {
    const NAME: &'static str = "feed_forward";
    /// x w1 + b1 and, unless it is recomputed, its GELU, (R, H).
    type Saved = (Tensor, Option<Tensor>);
    fn forward(&self, [residual, x, w1, b1, w2, b2]: [&Tensor; 6]) -> Result<(Tensor, Self::Saved)> {
        let op = Self::NAME;
        let all = [("x", x), ("w1", w1), ("b1", b1), ("w2", w2), ("b2", b2), ("residual", residual)];
        check::same_float(op, &all)?;
        let width = check_map(op, ("x", x.dims()), ("w1", w1), ("b1", b1))?;
        let n =
            check_map(op, ("the hidden layer", &[x.shape().rows_cols().0, width]), ("w2", w2), ("b2", b2))?;
        check_residual(op, residual, x, n)?;
        let problem = MatmulProblem::new(Matrix::rows_of(x)?, Matrix::of(op, "w1", w1)?, &[])?;
        let before = Tensor::empty(x.device(), [problem.m, width], x.dtype())?;
        let hidden = before.empty_like()?;
        let epilogue = Epilogue { bias: Some(b1), aux: EpilogueInputs::Gelu(&before), ..Epilogue::NONE };
        run(&hidden, &problem, &epilogue, false)?;
        let rows = residual.reshape([before.dims()[0], n])?;
        let y = mapped(&rows, &hidden, w2, Some(b2))?.reshape(residual.shape())?;
        Ok((y, (before, (!self.recompute).then_some(hidden))))
    }
    fn backward(
        &self,
        [_, x, w1, b1, w2, b2]: [&Tensor; 6],
        (before, hidden): &Self::Saved,
        dy: &Tensor,
    ) -> Result<[Option<Tensor>; 6]> {
        let rows = Matrix::rows_of(dy)?;
        let hidden = match hidden {
            Some(hidden) => hidden.clone(),
            None => gelu_recomputed(
                before,
                &MatmulProblem::new(Matrix::rows_of(x)?, Matrix::of("feed_forward", "w1", w1)?, &[])?,
            )?,
        };
        let (dw2, db2) = map_gradients(&hidden, w2, b2, &rows)?;
        drop(hidden);
        let problem = MatmulProblem::new(rows, Matrix::of("feed_forward", "w2", w2)?.transposed(), &[])?;
        let inner = before.empty_like()?;
        run(&inner, &problem, &Epilogue { aux: EpilogueInputs::GeluGrad(before), ..Epilogue::NONE }, false)?;
        let inner = Matrix::rows_of(&inner)?;
        let (dw1, db1) = map_gradients(x, w1, b1, &inner)?;
        Ok([Some(dy.clone()), input_gradient(x, w1, &inner)?, dw1, db1, dw2, db2])
    }
    fn reference(&self, [residual, x, w1, b1, w2, b2]: [&Array; 6]) -> Array {
        let linear = super::matmul::Linear;
        let row = UNARY.iter().find(|row| row.name == "gelu_tanh");
        let hidden = linear.reference([x, w1, b1]).map(|v| row.map_or(f64::NAN, |row| (row.f)(v, [0.0; 2])));
        residual.zip(&linear.reference([&hidden, w2, b2]), &residual.shape, |a, b| a + b)
    }
    fn calls() -> Vec<Call> {
        let doc = "Feed-forward layer into a residual stream: residual `(.., N)`, x `(.., K)` → `residual + gelu(x w1 + b1) w2 + b2`, GELU by its \
                   tanh approximation. With `recompute` the backward recomputes the GELU's result instead of saving it.";
        let call = Call::new(Self::NAME, doc).inputs(&["residual", "x", "w1", "b1", "w2", "b2"]);
        vec![call.default("recompute", false).run(|a| {
            let [residual, x, w1, b1, w2, b2] = a.inputs()?;
            let f = if a.get("recompute")? { feed_forward_again } else { feed_forward };
            f(residual, x, [w1, b1, w2, b2])
        })]
    }
    fn attributes(&self) -> Attributes {
        vec![("recompute", self.recompute.into())]
    }
    fn samples() -> Vec<Sample<Self, 6>> {
        let made = |recompute: bool, x: &[usize], width: usize, n: usize| {
            let (k, mut y) = (x[x.len() - 1], x.to_vec());
            y[x.len() - 1] = n;
            let inputs = [&y, x, &[k, width][..], &[width], &[width, n], &[n]].map(SampleInput::normal);
            Sample::new(Self { recompute }, inputs).sums(4 * width)
        };
        let sample = |x: &[usize], width: usize, n: usize| made(false, x, width, n);
        // The inputs cover GELU from one saturated end to the other.
        let mut far = made(false, &[3, 5], 6, 4);
        far.inputs[1] = SampleInput::uniform(&[3, 5], -30.0, 30.0);
        vec![
            sample(&[3, 5], 6, 4),
            sample(&[2, 10, 16], 24, 16),
            made(true, &[2, 10, 16], 24, 16).named("GELU made again"),
            far.extreme().step(1e-4).light(),
            sample(&[4], 3, 2).light(),
            sample(&[1, 1], 1, 1).light(),
            sample(&[0, 4], 3, 2).light(),
        ]
    }
}
