//! Gradients of inputs, computed from gradients of results. A gradient whose buffer is NULL is not computed. Each function waits for its
//! result.

use super::forward::{four, normalised};
use super::state::{Views, sizes, store};
use crate::edge::flag;
use crate::status::{Failure, NetclStatus, Result};
use netcl::tensor::Tensor;
use netcl::tensor::ops::Op;
use netcl::tensor::ops::embedding::Embedding;
use std::ffi::{c_int, c_void};

/// Computes the gradient of `x` from the gradient of `f(x)`.
fn gradient(
    x: &Tensor,
    dy: &Tensor,
    f: impl FnOnce(&Tensor) -> netcl::tensor::Result<Tensor>,
) -> Result<Tensor> {
    let x = x.parameter("x");
    f(&x)?.backward_with(dy)?;
    x.grad().ok_or_else(|| Failure::new(NetclStatus::Internal, "backward did not produce a gradient"))
}

/// Runs the backward of an operation with one input. It needs the input (or the result) and the gradient of the result.
fn unary(
    [x, dy, dx]: [*mut c_void; 3],
    given: &[c_int],
    back: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<()> {
    let shape = sizes(given)?;
    let views = Views::of("the gradient of the output", dy)?;
    let dy = views.floats("the gradient of the output", dy, &shape)?;
    let x = views.floats("the input", x, &shape)?;
    let dx = views.floats("the gradient of the input", dx, &shape)?;
    if dx.count() > 0 {
        store(&back(&x, &dy)?, &dx)?;
    }
    Ok(views.device().finish()?)
}

/// Computes the gradient of GELU: dx = dy · GELU'(x).
#[unsafe(no_mangle)]
pub extern "C" fn execute_gelu_backward_on_gpu(
    _gpu_index: c_int,
    buffer_input: *mut c_void,
    buffer_grad_output: *mut c_void,
    buffer_grad_input: *mut c_void,
    num_elements: c_int,
) -> c_int {
    flag("execute_gelu_backward_on_gpu", || {
        let buffers = [buffer_input, buffer_grad_output, buffer_grad_input];
        unary(buffers, &[num_elements], |x, dy| gradient(x, dy, Tensor::gelu))
    })
}

/// Computes the gradient of a layer norm without scale and shift.
#[unsafe(no_mangle)]
pub extern "C" fn execute_layernorm_backward_on_gpu(
    _gpu_index: c_int,
    buffer_dy: *mut c_void,
    buffer_x: *mut c_void,
    buffer_dx: *mut c_void,
    num_rows: c_int,
    row_size: c_int,
    eps: f32,
) -> c_int {
    flag("execute_layernorm_backward_on_gpu", || {
        unary([buffer_x, buffer_dy, buffer_dx], &[num_rows, row_size], |x, dy| {
            gradient(x, dy, |x| normalised(x, eps))
        })
    })
}

/// Computes the gradient of a softmax: dx = (dy - sum(dy · y)) · y for each row, where y is the result of the softmax.
#[unsafe(no_mangle)]
pub extern "C" fn execute_softmax_backward_on_gpu(
    _gpu_index: c_int,
    buffer_dy: *mut c_void,
    buffer_y: *mut c_void,
    buffer_dx: *mut c_void,
    num_rows: c_int,
    row_size: c_int,
) -> c_int {
    flag("execute_softmax_backward_on_gpu", || {
        unary([buffer_y, buffer_dy, buffer_dx], &[num_rows, row_size], |y, dy| {
            let dot = dy.mul(y)?.sum(&[-1], true)?;
            Ok(dy.sub(&dot)?.mul(y)?)
        })
    })
}

/// Computes the gradient of a transpose, which is the transpose of `buffer_dC`. `rows_A` and `cols_A` are the size of its input.
#[allow(non_snake_case)] // the names of the header
#[unsafe(no_mangle)]
pub extern "C" fn execute_transpose_backward_on_gpu(
    _gpu_index: c_int,
    buffer_dC: *mut c_void,
    buffer_dA: *mut c_void,
    rows_A: c_int,
    cols_A: c_int,
) -> c_int {
    flag("execute_transpose_backward_on_gpu", || {
        let shape = sizes(&[cols_A, rows_A])?;
        let views = Views::of("buffer_dC", buffer_dC)?;
        let dc = views.floats("buffer_dC", buffer_dC, &shape)?;
        let da = views.floats("buffer_dA", buffer_dA, &shape)?;
        if da.count() > 0 {
            store(&dc.permute(&[1, 0])?, &da)?;
        }
        Ok(views.device().finish()?)
    })
}

/// Computes dA = dC · B and dB = dC · A elementwise. Either may be NULL.
#[allow(non_snake_case)] // the names of the header
#[unsafe(no_mangle)]
pub extern "C" fn execute_mul_backward_on_gpu(
    _gpu_index: c_int,
    buffer_dC: *mut c_void,
    buffer_A: *mut c_void,
    buffer_B: *mut c_void,
    buffer_dA: *mut c_void,
    buffer_dB: *mut c_void,
    num_elements: c_int,
) -> c_int {
    flag("execute_mul_backward_on_gpu", || {
        let shape = sizes(&[num_elements])?;
        let views = Views::of("buffer_dC", buffer_dC)?;
        let view = |what, handle| views.floats(what, handle, &shape);
        let (dc, a, b) =
            (view("buffer_dC", buffer_dC)?, view("buffer_A", buffer_A)?, view("buffer_B", buffer_B)?);
        let da = views.wanted("buffer_dA", buffer_dA, &shape)?;
        let db = views.wanted("buffer_dB", buffer_dB, &shape)?;
        if shape[0] > 0 {
            // Computes both gradients before storing either: a result may share memory with an input.
            let of_a = da.as_ref().map(|_| dc.mul(&b)).transpose()?;
            let of_b = db.as_ref().map(|_| dc.mul(&a)).transpose()?;
            keep([(of_a, da), (of_b, db)])?;
        }
        Ok(views.device().finish()?)
    })
}

/// Stores the requested gradients in their buffers.
fn keep(pairs: [(Option<Tensor>, Option<Tensor>); 2]) -> Result<()> {
    for (made, to) in pairs {
        if let (Some(made), Some(to)) = (made, to) {
            store(&made, &to)?;
        }
    }
    Ok(())
}

/// Computes the gradients of C = A · B, for matrices or batches of matrices with equal numbers of axes.
fn product([a, b, dc, da, db]: [*mut c_void; 5], [of_a, of_b, of_c]: [&[usize]; 3]) -> Result<()> {
    let views = Views::of("buffer_dc", dc)?;
    let (a, b) = (views.floats("buffer_a", a, of_a)?, views.floats("buffer_b", b, of_b)?);
    let dc = views.floats("buffer_dc", dc, of_c)?;
    let da = views.wanted("buffer_da", da, of_a)?.filter(|da| da.count() > 0);
    let db = views.wanted("buffer_db", db, of_b)?.filter(|db| db.count() > 0);
    let of_a = da.as_ref().map(|_| dc.matmul(&b.transpose(-2, -1)?)).transpose()?;
    let of_b = db.as_ref().map(|_| a.transpose(-2, -1)?.matmul(&dc)).transpose()?;
    keep([(of_a, da), (of_b, db)])?;
    Ok(views.device().finish()?)
}

/// Computes the gradients of C = A · B with A (B, M, K) and B (K, N): dA = dC · Bᵀ and dB = Aᵀ · dC, summed over the batch. Either may be
/// NULL.
#[unsafe(no_mangle)]
pub extern "C" fn execute_matmul_backward_on_gpu(
    _gpu_index: c_int,
    buffer_a: *mut c_void,
    buffer_b: *mut c_void,
    buffer_dc: *mut c_void,
    buffer_da: *mut c_void,
    buffer_db: *mut c_void,
    dim_b: c_int,
    dim_m: c_int,
    dim_n: c_int,
    dim_k: c_int,
) -> c_int {
    flag("execute_matmul_backward_on_gpu", || {
        let [b, m, n, k] = four([dim_b, dim_m, dim_n, dim_k])?;
        let rows = b.saturating_mul(m);
        let buffers = [buffer_a, buffer_b, buffer_dc, buffer_da, buffer_db];
        product(buffers, [&[rows, k], &[k, n], &[rows, n]])
    })
}

/// Computes the gradients of C[b] = A[b] · B[b]: dA[b] = dC[b] · B[b]ᵀ and dB[b] = A[b]ᵀ · dC[b]. Either may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn execute_matmul_batched_backward_on_gpu(
    _gpu_index: c_int,
    buffer_a: *mut c_void,
    buffer_b: *mut c_void,
    buffer_dc: *mut c_void,
    buffer_da: *mut c_void,
    buffer_db: *mut c_void,
    dim_b: c_int,
    dim_m: c_int,
    dim_n: c_int,
    dim_k: c_int,
) -> c_int {
    flag("execute_matmul_batched_backward_on_gpu", || {
        let [b, m, n, k] = four([dim_b, dim_m, dim_n, dim_k])?;
        let buffers = [buffer_a, buffer_b, buffer_dc, buffer_da, buffer_db];
        product(buffers, [&[b, m, k], &[b, k, n], &[b, m, n]])
    })
}

/// Adds d_o[b, s, :] to d_w[idx[b, s], :]. Indices outside of d_w, such as padding, are ignored. The order of additions is deterministic.
#[unsafe(no_mangle)]
pub extern "C" fn execute_embedding_backward_gpu(
    _gpu_index: c_int,
    d_o: *mut c_void,
    idx: *mut c_void,
    d_w: *mut c_void,
    b: c_int,
    s: c_int,
    d: c_int,
    v: c_int,
) -> c_int {
    flag("execute_embedding_backward_gpu", || {
        let [b, s, d, v] = four([b, s, d, v])?;
        let n = b.saturating_mul(s);
        let views = Views::of("d_o", d_o)?;
        let (dy, ids) = (views.floats("d_o", d_o, &[n, d])?, views.ids("idx", idx, &[n])?);
        let sums = views.floats("d_w", d_w, &[v, d])?;
        if dy.count() > 0 && sums.count() > 0 {
            let [found, _] = Embedding.backward([&sums, &ids], &(), &dy)?;
            let found = found
                .ok_or_else(|| Failure::new(NetclStatus::Internal, "backward did not produce a gradient"))?;
            store(&sums.add(&found)?, &sums)?;
        }
        Ok(views.device().finish()?)
    })
}
