//! Forward operations. Each function waits for its result, unless its description says otherwise.

use super::state::{Views, sizes, store};
use crate::edge::flag;
use crate::status::Result;
use netcl::tensor::ops::embedding::embedding;
use netcl::tensor::ops::layer_norm::layer_norm;
use netcl::tensor::ops::map::map;
use netcl::tensor::{DType, Tensor};
use std::ffi::{c_int, c_void};

/// Expression that zeros the rows of `shape` whose id is out of range. `x0` is the rows, `x1` the ids as a column, `s0` the number of rows
/// of the table.
const KNOWN_ROWS: &str = "x1 >= 0.0f && x1 < s0 ? x0 : (FV)(0.0f)";

/// Runs an operation with one input: input and output have the shape `shape`.
fn unary(
    (input, output): (*mut c_void, *mut c_void),
    given: &[c_int],
    wait: bool,
    op: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<()> {
    let shape = sizes(given)?;
    let views = Views::of("the input", input)?;
    let x = views.floats("the input", input, &shape)?;
    let y = views.floats("the output", output, &shape)?;
    if x.count() > 0 {
        store(&op(&x)?, &y)?;
    }
    if wait { Ok(views.device().finish()?) } else { Ok(()) }
}

/// Runs an operation with two inputs. The second one is broadcast to the first.
fn binary(
    [a, b, c]: [*mut c_void; 3],
    [of_a, of_b]: [&[c_int]; 2],
    op: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<()> {
    let (of_a, of_b) = (sizes(of_a)?, sizes(of_b)?);
    let views = Views::of("a", a)?;
    let (a, b) = (views.floats("a", a, &of_a)?, views.floats("b", b, &of_b)?);
    let c = views.floats("the result", c, &of_a)?;
    if c.count() > 0 {
        store(&op(&a, &b)?, &c)?;
    }
    Ok(views.device().finish()?)
}

/// Computes a matrix product. `of_c` is the shape of its result.
fn product([a, b, c]: [*mut c_void; 3], [of_a, of_b, of_c]: [&[usize]; 3]) -> Result<()> {
    let views = Views::of("buffer_a", a)?;
    let (a, b) = (views.floats("buffer_a", a, of_a)?, views.floats("buffer_b", b, of_b)?);
    let c = views.floats("buffer_c", c, of_c)?;
    if c.count() > 0 {
        store(&a.matmul(&b)?, &c)?;
    }
    Ok(views.device().finish()?)
}

/// Computes C = A · B with A (B, M, K), B (K, N), C (B, M, N). Use B = 1 for matrices.
#[unsafe(no_mangle)]
pub extern "C" fn execute_matmul_on_gpu(
    _gpu_index: c_int,
    buffer_a: *mut c_void,
    buffer_b: *mut c_void,
    buffer_c: *mut c_void,
    dim_b: c_int,
    dim_m: c_int,
    dim_n: c_int,
    dim_k: c_int,
) -> c_int {
    flag("execute_matmul_on_gpu", || {
        let [b, m, n, k] = four([dim_b, dim_m, dim_n, dim_k])?;
        let rows = b.saturating_mul(m);
        product([buffer_a, buffer_b, buffer_c], [&[rows, k], &[k, n], &[rows, n]])
    })
}

/// Computes C[b] = A[b] · B[b] with A (B, M, K), B (B, K, N), C (B, M, N).
#[unsafe(no_mangle)]
pub extern "C" fn execute_matmul_batched_on_gpu(
    _gpu_index: c_int,
    buffer_a: *mut c_void,
    buffer_b: *mut c_void,
    buffer_c: *mut c_void,
    dim_b: c_int,
    dim_m: c_int,
    dim_n: c_int,
    dim_k: c_int,
) -> c_int {
    flag("execute_matmul_batched_on_gpu", || {
        let [b, m, n, k] = four([dim_b, dim_m, dim_n, dim_k])?;
        product([buffer_a, buffer_b, buffer_c], [&[b, m, k], &[b, k, n], &[b, m, n]])
    })
}

/// Computes the softmax of each row.
#[unsafe(no_mangle)]
pub extern "C" fn execute_softmax_on_gpu(
    _gpu_index: c_int,
    buffer_input: *mut c_void,
    buffer_output: *mut c_void,
    num_rows: c_int,
    row_size: c_int,
) -> c_int {
    flag("execute_softmax_on_gpu", || {
        unary((buffer_input, buffer_output), &[num_rows, row_size], true, |x| Ok(x.softmax(-1)?))
    })
}

/// Computes the log-softmax over the last axis of (B, S, V). Does not wait; later operations on this GPU see the result.
#[unsafe(no_mangle)]
pub extern "C" fn execute_log_softmax_stable_gpu(
    _gpu_index: c_int,
    input_logits: *mut c_void,
    output_log_probs: *mut c_void,
    dim_b: c_int,
    dim_s: c_int,
    dim_v: c_int,
) -> c_int {
    flag("execute_log_softmax_stable_gpu", || {
        unary((input_logits, output_log_probs), &[dim_b, dim_s, dim_v], false, |x| Ok(x.log_softmax(-1)?))
    })
}

/// Computes GELU elementwise: 0.5 · x · (1 + erf(x / √2)).
#[unsafe(no_mangle)]
pub extern "C" fn execute_gelu_on_gpu(
    _gpu_index: c_int,
    buffer_input: *mut c_void,
    buffer_output: *mut c_void,
    num_elements: c_int,
) -> c_int {
    flag("execute_gelu_on_gpu", || {
        unary((buffer_input, buffer_output), &[num_elements], true, |x| Ok(x.gelu()?))
    })
}

/// Computes C = A + B elementwise.
#[unsafe(no_mangle)]
pub extern "C" fn execute_add_on_gpu(
    _gpu_index: c_int,
    buffer_a: *mut c_void,
    buffer_b: *mut c_void,
    buffer_c: *mut c_void,
    num_elements: c_int,
) -> c_int {
    flag("execute_add_on_gpu", || {
        binary([buffer_a, buffer_b, buffer_c], [&[num_elements]; 2], |a, b| Ok(a.add(b)?))
    })
}

/// Computes C = A · B elementwise.
#[unsafe(no_mangle)]
pub extern "C" fn execute_mul_on_gpu(
    _gpu_index: c_int,
    buffer_a: *mut c_void,
    buffer_b: *mut c_void,
    buffer_c: *mut c_void,
    num_elements: c_int,
) -> c_int {
    flag("execute_mul_on_gpu", || {
        binary([buffer_a, buffer_b, buffer_c], [&[num_elements]; 2], |a, b| Ok(a.mul(b)?))
    })
}

/// Adds a bias: C[b, m, n] = A[b, m, n] + B[n].
#[unsafe(no_mangle)]
pub extern "C" fn execute_broadcast_add_gpu(
    _gpu_index: c_int,
    a: *mut c_void,
    b: *mut c_void,
    c: *mut c_void,
    dim_b: c_int,
    dim_m: c_int,
    dim_n: c_int,
) -> c_int {
    flag("execute_broadcast_add_gpu", || {
        binary([a, b, c], [&[dim_b, dim_m, dim_n], &[dim_n]], |a, b| Ok(a.add(b)?))
    })
}

/// Adds positional encodings: output[b, s, e] = input[b, s, e] + pe[s, e].
#[unsafe(no_mangle)]
pub extern "C" fn execute_add_broadcast_pe_gpu(
    _gpu_index: c_int,
    input: *mut c_void,
    pe_slice: *mut c_void,
    output: *mut c_void,
    dim_b: c_int,
    dim_s: c_int,
    dim_e: c_int,
) -> c_int {
    flag("execute_add_broadcast_pe_gpu", || {
        binary([input, pe_slice, output], [&[dim_b, dim_s, dim_e], &[dim_s, dim_e]], |a, b| Ok(a.add(b)?))
    })
}

/// Computes a layer norm without scale and shift: each row minus its mean, divided by the square root of its variance plus `eps`.
#[unsafe(no_mangle)]
pub extern "C" fn execute_layernorm_on_gpu(
    _gpu_index: c_int,
    buffer_input: *mut c_void,
    buffer_output: *mut c_void,
    num_rows: c_int,
    row_size: c_int,
    eps: f32,
) -> c_int {
    flag("execute_layernorm_on_gpu", || {
        unary((buffer_input, buffer_output), &[num_rows, row_size], true, |x| Ok(normalised(x, eps)?))
    })
}

/// Computes a layer norm with scale 1 and shift 0.
pub(super) fn normalised(x: &Tensor, eps: f32) -> netcl::tensor::Result<Tensor> {
    let n = x.shape().rows_cols().1;
    let (gamma, beta) =
        (Tensor::ones(x.device(), [n], x.dtype())?, Tensor::zeros(x.device(), [n], x.dtype())?);
    layer_norm(x, &gamma, &beta, eps)
}

/// Transposes a matrix of `rows` × `cols`.
#[unsafe(no_mangle)]
pub extern "C" fn execute_transpose_on_gpu(
    _gpu_index: c_int,
    buffer_input: *mut c_void,
    buffer_output: *mut c_void,
    rows: c_int,
    cols: c_int,
) -> c_int {
    flag("execute_transpose_on_gpu", || {
        unary((buffer_input, buffer_output), &[rows, cols], true, |x| Ok(x.permute(&[1, 0])?))
    })
}

/// Transposes the last two axes: (B_flat, d1, d2) to (B_flat, d2, d1).
#[allow(non_snake_case)] // the names of the header
#[unsafe(no_mangle)]
pub extern "C" fn execute_transpose_batched_gpu(
    _gpu_index: c_int,
    r#in: *mut c_void,
    out: *mut c_void,
    B_flat: c_int,
    d1: c_int,
    d2: c_int,
) -> c_int {
    flag("execute_transpose_batched_gpu", || {
        unary((r#in, out), &[B_flat, d1, d2], true, |x| Ok(x.permute(&[0, 2, 1])?))
    })
}

/// Swaps the two middle axes: (B, d1, d2, d3) to (B, d2, d1, d3).
#[unsafe(no_mangle)]
pub extern "C" fn execute_transpose_12_batched_gpu(
    _gpu_index: c_int,
    buffer_in: *mut c_void,
    buffer_out: *mut c_void,
    dim_b: c_int,
    d1: c_int,
    d2: c_int,
    d3: c_int,
) -> c_int {
    flag("execute_transpose_12_batched_gpu", || {
        unary((buffer_in, buffer_out), &[dim_b, d1, d2, d3], true, |x| Ok(x.permute(&[0, 2, 1, 3])?))
    })
}

/// Looks up rows: o[b, s, :] = w[idx[b, s], :] with idx (b, s) int32, w (v, d), o (b, s, d). Indices outside of w, such as padding, give
/// zeros.
#[unsafe(no_mangle)]
pub extern "C" fn execute_embedding_lookup_gpu(
    _gpu_index: c_int,
    idx: *mut c_void,
    w: *mut c_void,
    o: *mut c_void,
    b: c_int,
    s: c_int,
    d: c_int,
    v: c_int,
) -> c_int {
    flag("execute_embedding_lookup_gpu", || {
        let [b, s, d, v] = four([b, s, d, v])?;
        let n = b.saturating_mul(s);
        let views = Views::of("idx", idx)?;
        let (ids, w) = (views.ids("idx", idx, &[n])?, views.floats("w", w, &[v, d])?);
        let out = views.floats("o", o, &[n, d])?;
        if out.count() > 0 {
            if v == 0 {
                out.set_all(0.0)?;
            } else {
                let rows = embedding(&w, &ids)?;
                let column = ids.reshape([n, 1])?;
                store(&map(KNOWN_ROWS, &[&rows, &column], &[v as f32], out.shape(), DType::F32)?, &out)?;
            }
        }
        Ok(views.device().finish()?)
    })
}

/// Sums over b and m: out[n] = sum of in[b, m, n], the gradient of a bias.
#[unsafe(no_mangle)]
pub extern "C" fn execute_reduce_sum_gpu(
    _gpu_index: c_int,
    r#in: *mut c_void,
    out: *mut c_void,
    dim_b: c_int,
    dim_m: c_int,
    dim_n: c_int,
) -> c_int {
    flag("execute_reduce_sum_gpu", || {
        let [b, m, n, _] = four([dim_b, dim_m, dim_n, 0])?;
        let views = Views::of("in", r#in)?;
        let x = views.floats("in", r#in, &[b.saturating_mul(m), n])?;
        let y = views.floats("out", out, &[n])?;
        if n > 0 {
            store(&x.sum(&[0], false)?, &y)?;
        }
        Ok(views.device().finish()?)
    })
}

/// Converts four sizes; negative sizes are errors.
pub(super) fn four(given: [c_int; 4]) -> Result<[usize; 4]> {
    let found = sizes(&given)?;
    Ok([found[0], found[1], found[2], found[3]])
}
