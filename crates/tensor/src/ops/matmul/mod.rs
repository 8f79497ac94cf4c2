//! Matrix products: `matmul` with broadcast batches, and `linear`, which adds its bias in the same launch.
//!
//! Kernels read operands in place: a transpose, a slice or a repeated batch needs no copy. Sums are f32 for every storage type. Gradients are
//! products too: `dA = dY Bᵀ` and `dB = Aᵀ dY`. If a batch shares one `b`, it is computed as one product with more rows. The gradient of a weight
//! therefore needs no sum over the batch.

use super::algorithms::Row;
use super::prelude::*;
pub(super) use algorithms::gemv::Norm;
use algorithms::{MATMUL, MatmulRequest};
pub(crate) use epilogue::Tree;
pub(super) use epilogue::{Epilogue, EpilogueInputs};
pub(super) use launch::{accumulate, gelu_recomputed, run};
use view::batch_sizes;
pub(super) use view::{MatmulProblem, Matrix};

mod algorithms;
mod arguments;
mod epilogue;
pub(super) mod grouped;
pub(super) mod groups;
mod launch;
mod lines;
mod plan;
mod proof;
mod split_k;
mod tiles;
mod view;

/// Products of few rows, with more operations fused into them than other kernels support.
pub(super) mod few_rows {
    pub(in crate::ops) use super::algorithms::gemv::{Fused, Stack};
    pub(in crate::ops) use super::launch::{norm_apart, run_columns, run_few_rows as run};
}

/// The sm_90 tensor-core kernels, for use by other operations.
pub(super) mod warpgroups {
    pub(in crate::ops) use super::arguments::Unused;
    pub(in crate::ops) use super::proof::expression as proof_of_expression;
    pub(in crate::ops) use super::tiles::{MODEL, NARROW, Speeds, SplitK, TILES, Tile};
}

/// Multiplies a `(.., M, K)` by b `(.., K, N)` → `(.., M, N)`; the axes before the last two broadcast.
///
/// # Errors
/// `Shape` if K differs, batches do not broadcast, or an operand has fewer than two axes; `DType` if the operands are not floats of one type.
pub fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    MatMul.apply([a, b])
}

/// Computes `x w + bias` `(.., N)` for x `(.., K)`, w `(K, N)`, bias `(N)`.
///
/// # Errors
/// `Shape` if K or N differ; `DType` if the operands are not floats of one type.
pub fn linear(x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    columns_of(x, w)?;
    match bias {
        Some(bias) => Linear.apply([x, w, bias]),
        None if x.shape().rank() > 1 => matmul(x, w),
        None => matmul(&x.reshape([1, x.count()])?, w)?.reshape([w.shape().last()]),
    }
}

/// Computes `y = x w + bias`, or an expression of it, off the tape: x `(.., K)`, w `(K, N)`, bias `(N)`; y `(.., N)` is dense and of x's type.
pub(crate) fn linear_into(
    y: &Tensor,
    (x, w, bias): (&Tensor, &Tensor, Option<&Tensor>),
    tree: Option<&Tree<'_>>,
) -> Result<()> {
    let problem = MatmulProblem::new(Matrix::rows_of(x)?, Matrix::of("linear", "w", w)?, &[])?;
    let aux = tree.map_or(EpilogueInputs::None, EpilogueInputs::Tree);
    launch::run(y, &problem, &Epilogue { bias, aux, ..Epilogue::NONE }, false).map(drop)
}

/// Returns N of w `(K, N)` if the last axis of x is K.
fn columns_of(x: &Tensor, w: &Tensor) -> Result<usize> {
    let [k, n] = w.dims2().map_err(|e| e.context("linear: w"))?;
    if x.shape().rank() > 0 && x.shape().last() == k {
        return Ok(n);
    }
    Err(Error::shape(format!(
        "linear: the last axis of x {} is {}, expected {k}, the first axis of w {}",
        x.shape(),
        x.shape().last(),
        w.shape()
    )))
}

/// Computes `c += alpha * a b` in place, off the tape. It is used to accumulate gradients over several batches. `c` has the product's shape and is
/// contiguous.
///
/// # Errors
/// Errors of [`matmul`]; `Shape` if `c` has another shape or is not contiguous.
pub fn matmul_add(c: &Tensor, a: &Tensor, b: &Tensor, alpha: f32) -> Result<()> {
    check::one_device("matmul_add", &[a, b, c])?;
    check::same_float("matmul_add", &[("a", a), ("b", b), ("c", c)])?;
    let (a, b) = (Matrix::of("matmul_add", "a", a)?, Matrix::of("matmul_add", "b", b)?);
    let (shape, sizes) = result_shape("matmul_add", &a, &b)?;
    if *c.shape() != shape || !c.is_dense() {
        return Err(Error::shape(format!(
            "matmul_add: c has shape {}{}, expected a contiguous {shape}",
            c.shape(),
            if c.is_dense() { "" } else { " and is not contiguous" }
        )));
    }
    let problem = MatmulProblem::new(a, b, &sizes)?;
    launch::run(&c.detach(), &problem, &Epilogue { alpha, add: true, ..Epilogue::NONE }, false).map(drop)
}

/// Returns every algorithm for `a b` with its estimate, or the reason why it does not apply. Nothing runs.
///
/// # Errors
/// Errors of [`matmul`].
pub fn explain(a: &Tensor, b: &Tensor) -> Result<Vec<Row>> {
    with_request(a, b, |request| MATMUL.explain(request))
}

/// Computes [`matmul`] off the tape by the algorithm with this name.
///
/// # Errors
/// Errors of [`matmul`]; `Unsupported` if the algorithm does not apply.
pub fn matmul_by(a: &Tensor, b: &Tensor, name: &str) -> Result<Tensor> {
    with_request(a, b, |request| MATMUL.with(name, request).map(|_| request.c.clone()))?
}

fn with_request<R>(a: &Tensor, b: &Tensor, f: impl FnOnce(&MatmulRequest<'_>) -> R) -> Result<R> {
    check::same_float("matmul", &[("a", a), ("b", b)])?;
    let (a, b) = (Matrix::of("matmul", "a", a)?, Matrix::of("matmul", "b", b)?);
    let (shape, sizes) = result_shape("matmul", &a, &b)?;
    let c = Tensor::empty(a.tensor.device(), shape, a.tensor.dtype())?;
    let p = MatmulProblem::new(a, b, &sizes)?;
    Ok(f(&MatmulRequest { c: &c, p: &p, e: &Epilogue::NONE, column_sums: false }))
}

impl Tensor {
    /// Computes [`matmul`] with `other` on the right.
    pub fn matmul(&self, other: &Self) -> Result<Self> {
        matmul(self, other)
    }
}

/// Returns the shape of the product and the sizes of its batch axes.
fn result_shape(op: &str, a: &Matrix, b: &Matrix) -> Result<(Shape, Vec<usize>)> {
    if a.cols != b.rows {
        return Err(Error::shape(format!(
            "{op}: the last axis of a {} is {}, expected {}, the second-to-last axis of b {}",
            shape_of(a),
            a.cols,
            b.rows,
            shape_of(b)
        )));
    }
    let sizes = batch_sizes(op, a, b)?;
    let shape = sizes.iter().copied().chain([a.rows, b.cols]).collect::<Vec<_>>();
    Ok((shape.into(), sizes))
}

fn shape_of(x: &Matrix) -> Shape {
    x.batch.iter().map(|(size, _)| *size).chain([x.rows, x.cols]).collect::<Vec<_>>().into()
}

pub(super) fn product(a: Matrix, b: Matrix, e: &Epilogue<'_>) -> Result<Tensor> {
    let (shape, sizes) = result_shape("matmul", &a, &b)?;
    let y = Tensor::empty(a.tensor.device(), shape, a.tensor.dtype())?;
    launch::run(&y, &MatmulProblem::new(a, b, &sizes)?, e, false)?;
    Ok(y)
}

/// Returns the gradients of a weight `(K, N)` and, if requested, of a bias `(N)`: `Xᵀ dY` and the column sums of dY, x `(R, K)`, dy `(R, N)`. The
/// gradient of a transposed weight is stored transposed too, since it is added to the gradient of the tensor under that view.
pub(super) fn weight_gradients(
    x: Matrix,
    dy: Matrix,
    w: &Tensor,
    bias: bool,
) -> Result<(Tensor, Option<Tensor>)> {
    let strides = &w.layout().strides;
    let transposed = strides[1] != 1 && strides[0] == 1;
    let (k, n) = (x.cols, dy.cols);
    let (a, b) = if transposed { (dy.clone().transposed(), x) } else { (x.transposed(), dy.clone()) };
    let dw = Tensor::empty(w.device(), [a.rows, b.cols], w.dtype())?;
    let sums = launch::run(&dw, &MatmulProblem::new(a, b, &[])?, &Epilogue::NONE, bias && !transposed)?;
    let dw = if transposed { dw.permute(&[1, 0])? } else { dw };
    debug_assert_eq!(dw.dims(), [k, n]);
    let db = match (bias, sums) {
        (false, _) => None,
        (true, Some(sums)) => Some(sums.to_dtype(w.dtype())?),
        (true, None) => Some(column_sums(&dy)?),
    };
    Ok((dw, db))
}

/// Sums a matrix `(R, N)` over its rows.
fn column_sums(x: &Matrix) -> Result<Tensor> {
    let strides = vec![x.row_stride, x.col_stride];
    let layout = Layout { shape: [x.rows, x.cols].into(), strides, offset: x.offset() };
    x.tensor.with_layout(layout).sum(&[0], false)
}

/// Operation of [`matmul`].
#[derive(Clone)]
pub struct MatMul;

impl Op<2> for MatMul {
    const NAME: &'static str = "matmul";
    type Saved = ();
    fn forward(&self, [a, b]: [&Tensor; 2]) -> Result<(Tensor, ())> {
        check::same_float("matmul", &[("a", a), ("b", b)])?;
        let (a, b) = (Matrix::of("matmul", "a", a)?, Matrix::of("matmul", "b", b)?);
        Ok((product(a, b, &Epilogue::NONE)?, ()))
    }
    fn term(&self, [a, b]: [&Tensor; 2]) -> Result<Option<Term>> {
        check::same_float("matmul", &[("a", a), ("b", b)])?;
        let (left, right) = (Matrix::of("matmul", "a", a)?, Matrix::of("matmul", "b", b)?);
        result_shape("matmul", &left, &right)?;
        Ok((b.shape().rank() == 2).then_some(Term::Product))
    }
    fn backward(&self, [a, b]: [&Tensor; 2], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let matrix = |x: &Tensor| Matrix::of("matmul", "gradient", x);
        let da = match a.requires_grad() {
            true => Some(product(matrix(dy)?, matrix(b)?.transposed(), &Epilogue::NONE)?.sum_to(a.shape())?),
            false => None,
        };
        let db = match b.requires_grad() {
            true if b.shape().rank() == 2 => {
                Some(weight_gradients(Matrix::rows_of(a)?, Matrix::rows_of(dy)?, b, false)?.0)
            }
            true => Some(product(matrix(a)?.transposed(), matrix(dy)?, &Epilogue::NONE)?.sum_to(b.shape())?),
            false => None,
        };
        Ok([da, db])
    }
    fn reference(&self, [a, b]: [&Array; 2]) -> Array {
        reference(a, b)
    }
    fn calls() -> Vec<Call> {
        let doc = "Matrix product: a `(.., M, K)`, b `(.., K, N)` → `(.., M, N)`; the axes before the last two broadcast.";
        vec![
            Call::new(Self::NAME, doc)
                .inputs(&["a", "b"])
                .run(|a| a.inputs().and_then(|[a, b]| matmul(a, b))),
        ]
    }
    fn samples() -> Vec<Sample<Self, 2>> {
        let sample = |a: &[usize], b: &[usize]| {
            Sample::new(Self, [SampleInput::normal(a), SampleInput::normal(b)])
                .sums(a[a.len() - 1].max(a[a.len() - 2]))
        };
        vec![
            sample(&[5, 7], &[7, 3])
                .bench(&[&[768, 768], &[768, 768]])
                .bench(&[&[1536, 1536], &[1536, 1536]])
                .bench(&[&[2304, 2304], &[2304, 2304]]),
            // Whole register tiles and edges.
            sample(&[13, 32], &[32, 35]),
            sample(&[1, 1], &[1, 1]),
            sample(&[1, 70], &[70, 9]),
            Sample::new(Self, [[5, 7], [7, 3]].map(|s| SampleInput::uniform(&s, -1e15, 1e15)))
                .sums(7)
                .extreme()
                .light(),
            sample(&[3, 4, 6], &[6, 5]),
            sample(&[3, 4, 6], &[3, 6, 5]),
            sample(&[2, 1, 4, 6], &[1, 3, 6, 5]),
            sample(&[4, 6], &[2, 6, 5]).light(),
            // Batches that cannot be merged to two axes are copied.
            sample(&[2, 1, 2, 3, 2], &[1, 2, 1, 2, 3]).light(),
            sample(&[0, 3], &[3, 2]),
            sample(&[2, 0], &[0, 3]).light(),
            sample(&[2, 3], &[3, 0]).light(),
            sample(&[0, 2, 3], &[0, 3, 2]).light(),
            sample(&[0, 2, 3], &[3, 2]).light(),
            // More than one block of the sum.
            sample(&[2, 600], &[600, 3]).light(),
            // Few rows: whole vectors and remainders of lines, sums shared by several groups, each number of rows.
            sample(&[3, 130], &[130, 83]),
            sample(&[1, 1100], &[1100, 5]).bench(&[&[1, 768], &[768, 3072]]).light(),
            sample(&[8, 36], &[36, 400]).light(),
            sample(&[2, 40], &[40, 67]).light(),
            sample(&[4, 33], &[33, 48]).light(),
            sample(&[5, 64], &[64, 130]).light(),
            sample(&[6, 20], &[20, 11]).light(),
            sample(&[7, 19], &[19, 50]).light(),
            // Sizes that tensor cores accept: rows of a multiple of 16 bytes, also if a batch becomes more rows.
            sample(&[24, 40], &[40, 16]),
            sample(&[3, 8, 16], &[16, 24]),
        ]
    }
}

/// Returns N if x, w and bias fit together.
fn checked_columns(x: &Tensor, w: &Tensor, bias: &Tensor) -> Result<usize> {
    check::same_float("linear", &[("x", x), ("w", w), ("bias", bias)])?;
    let n = columns_of(x, w)?;
    if bias.dims() != [n] {
        return Err(Error::shape(format!(
            "linear: bias has shape {}, expected [{n}], the last axis of w {}",
            bias.shape(),
            w.shape()
        )));
    }
    Ok(n)
}

/// Operation of [`linear`].
#[derive(Clone)]
pub struct Linear;

impl Op<3> for Linear {
    const NAME: &'static str = "linear";
    type Saved = ();
    fn forward(&self, [x, w, bias]: [&Tensor; 3]) -> Result<(Tensor, ())> {
        let n = checked_columns(x, w, bias)?;
        let mut dims = x.dims().to_vec();
        dims[x.shape().rank() - 1] = n;
        let y = Tensor::empty(x.device(), dims, x.dtype())?;
        linear_into(&y, (x, w, Some(bias)), None)?;
        Ok((y, ()))
    }
    fn term(&self, [x, w, bias]: [&Tensor; 3]) -> Result<Option<Term>> {
        checked_columns(x, w, bias).map(|_| Some(Term::Product))
    }
    fn backward(&self, [x, w, bias]: [&Tensor; 3], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let dy = Matrix::rows_of(dy)?; // (R, N)
        let dx = match x.requires_grad() {
            true => {
                let w = Matrix::of("linear", "w", w)?.transposed();
                Some(product(dy.clone(), w, &Epilogue::NONE)?.reshape(x.shape())?)
            }
            false => None,
        };
        let (dw, db) = match (w.requires_grad(), bias.requires_grad()) {
            (true, bias) => {
                let (dw, db) = weight_gradients(Matrix::rows_of(x)?, dy, w, bias)?;
                (Some(dw), db)
            }
            (false, true) => (None, Some(column_sums(&dy)?)),
            (false, false) => (None, None),
        };
        Ok([dx, dw, db])
    }
    fn reference(&self, [x, w, bias]: [&Array; 3]) -> Array {
        let (rows, k) = x.shape.rows_cols();
        let y = reference(&Array::new([rows, k], x.data.clone()), w);
        let mut dims = x.shape.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = bias.data.len();
        }
        let n = bias.data.len().max(1);
        Array::from_fn(dims, |i| y.data[i] + bias.data[i % n])
    }
    fn calls() -> Vec<Call> {
        let doc = "Linear map: x `(.., K)`, w `(K, N)`, bias `(N)` → `x w + bias` `(.., N)`.";
        let call = Call::new(Self::NAME, doc).inputs(&["x", "w"]).optional_inputs(&["bias"]);
        vec![call.run(|a| a.inputs().and_then(|[x, w]| linear(x, w, a.optional("bias"))))]
    }
    fn samples() -> Vec<Sample<Self, 3>> {
        let sample = |x: &[usize], n: usize| {
            let k = x[x.len() - 1];
            let inputs = [SampleInput::normal(x), SampleInput::normal(&[k, n]), SampleInput::normal(&[n])];
            Sample::new(Self, inputs).sums(x.iter().product::<usize>().min(64))
        };
        vec![
            sample(&[5, 7], 3).bench(&[&[768, 128], &[128, 512], &[512]]),
            sample(&[2, 7, 33], 20),
            sample(&[6], 4),
            sample(&[1, 1], 1),
            sample(&[0, 4], 3),
            sample(&[300, 2], 17).light(),
            Sample::new(
                Self,
                [
                    SampleInput::uniform(&[5, 7], -1e6, 1e6),
                    SampleInput::uniform(&[7, 3], -1e6, 1e6),
                    SampleInput::uniform(&[3], -1e12, 1e12),
                ],
            )
            .sums(7)
            .extreme()
            .light(),
            sample(&[24, 16], 40),
        ]
    }
}

/// Computes the product by its definition; batches broadcast.
fn reference(a: &Array, b: &Array) -> Array {
    let split = |x: &Array| {
        let (batch, matrix) = x.shape.dims().split_at(x.shape.rank() - 2);
        (Shape::from(batch), matrix[0], matrix[1])
    };
    let (a_batch, m, k) = split(a);
    let (b_batch, _, n) = split(b);
    // Shapes that do not broadcast never reach this point: the forward rejects them.
    let batch = a_batch.broadcast(&b_batch, "matmul").unwrap_or_default();
    let full = |rows, cols| Shape::from(batch.dims().iter().copied().chain([rows, cols]).collect::<Vec<_>>());
    let (a, b) = (a.expand(&full(m, k)), b.expand(&full(k, n)));
    let mut y = Array::zeros(full(m, n));
    for (at, row) in y.data.chunks_mut(n.max(1)).enumerate() {
        for j in 0..k {
            let (a, b) = (a.data[at * k + j], &b.data[(at / m * k + j) * n..][..n]);
            row.iter_mut().zip(b).for_each(|(sum, b)| *sum += a * b);
        }
    }
    y
}

#[cfg(test)]
mod order;
#[cfg(test)]
mod sweep;
#[cfg(test)]
mod tensor_cores;
#[cfg(test)]
mod tests;
