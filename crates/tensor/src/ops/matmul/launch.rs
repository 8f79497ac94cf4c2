//! Runs one product by the cheapest algorithm of the table.

use super::super::map::map_into;
use super::super::prelude::*;
use super::algorithms::gemv::Stack;
use super::algorithms::wgmma::WGMMA;
use super::algorithms::{MATMUL, MatmulRequest, gemv, gemv_int8, rows_mma};
use super::epilogue::{Epilogue, EpilogueInputs, gelu};
use super::view::MatmulProblem;
use crate::quant::BlockOrder;

/// Computes `c = epilogue(a b)`; `c` is dense and has as many elements as the product. Returns the column sums of `b` (summed in f32) if they were
/// requested and the chosen kernel computes them during the product.
pub(in crate::ops) fn run(
    c: &Tensor,
    p: &MatmulProblem,
    epilogue: &Epilogue<'_>,
    column_sums: bool,
) -> Result<Option<Tensor>> {
    let largest = i32::MAX.cast_unsigned() as usize;
    if p.m.max(p.n).max(p.k).max(p.batch()) > largest {
        return Err(Error::shape(format!(
            "matmul: {} products of ({}, {}) and ({}, {}) have an axis above {largest}; split it",
            p.batch(),
            p.m,
            p.k,
            p.k,
            p.n
        )));
    }
    MATMUL.run(&MatmulRequest { c, p, e: epilogue, column_sums })
}

/// Computes `sum = a b`, or `sum += a b` if this is not the first of several products. `sum` (m, n) is f32 for all types of a and b.
pub(in crate::ops) fn accumulate(sum: &Tensor, p: &MatmulProblem, first: bool) -> Result<()> {
    let epilogue = Epilogue { add: !first, ..Epilogue::NONE };
    let request = MatmulRequest { c: sum, p, e: &epilogue, column_sums: false };
    if !request.widens() || MATMUL.choose(&request).is_ok() {
        return run(sum, p, &epilogue, false).map(drop);
    }
    // Each partial product is rounded once before it is added: to the type to which the final sum is rounded.
    let part = Tensor::empty(sum.device(), [p.m, p.n], request.dtype())?;
    run(&part, p, &Epilogue::NONE, false)?;
    match first {
        true => map_into("x0", &[&part], &[], sum),
        false => map_into("x0 + x1", &[sum, &part], &[], sum),
    }
}

static GELU_RECOMPUTED: Kernel = Kernel::new("gelu_recomputed", cl_file!("gelu_recomputed.cl"))
    .include(&[cl_file!("../include/gelu_sm90.cl")]);

/// Computes GELU of the matrix that [`EpilogueInputs::Gelu`] left in `before` for the product `p`, with the same bits as that launch.
pub(in crate::ops) fn gelu_recomputed(before: &Tensor, p: &MatmulProblem) -> Result<Tensor> {
    // Only the warpgroup kernel computes the GELU of 16-bit results itself.
    let epilogue = Epilogue { aux: EpilogueInputs::Gelu(before), ..Epilogue::NONE };
    let request = MatmulRequest { c: before, p, e: &epilogue, column_sums: false };
    let within = before.dtype() != DType::F32
        && before.count() > 0
        && MATMUL.choose(&request)?.0.kernel.name == WGMMA.name;
    if !within {
        return map(gelu()?.0, &[before], &[], before.shape(), before.dtype());
    }
    let y = before.empty_like()?;
    let launch =
        GELU_RECOMPUTED.launch("gelu_recomputed").define("DTYPE", before.dtype().code()).local([256, 1, 1]);
    launch.items(before.count().div_ceil(2)).read(before).write(&y).scalar(before.count()).run()?;
    Ok(y)
}

/// Computes `c (M, N)` of few rows and everything in `fused` in one launch. Returns `false` if no kernel here supports it.
pub(in crate::ops) fn run_few_rows(c: &Tensor, p: &MatmulProblem, fused: &gemv::Fused<'_>) -> Result<bool> {
    if let Some(stored) = fused.blocks {
        let row_stride = p.n / fused.parts();
        if gemv_int8::run(&gemv_int8::GemvInt8Request { c, row_stride, p, fused, stored })? {
            return Ok(true);
        }
        if stored.order != BlockOrder::File || matches!(fused.stack, Some(Stack::Sorted { .. })) {
            return Ok(false);
        }
    }
    let request = MatmulRequest { c, p, e: &Epilogue::NONE, column_sums: false };
    if fused.norm.is_none()
        && fused.stack.is_none()
        && let Some(shape) = rows_mma::of_few_rows(&request, fused)
    {
        return rows_mma::product(c, p, fused, shape).map(|()| true);
    }
    match gemv::of_few_rows(&request, fused) {
        Some(kernel) => gemv::run_fused(kernel, c, p, fused).map(|()| true),
        None => Ok(false),
    }
}

/// Returns whether a separate launch for the norm before such a product is faster. Tensor cores read A unchanged, so they cannot apply the norm.
pub(in crate::ops) fn norm_apart(c: &Tensor, p: &MatmulProblem, fused: &gemv::Fused<'_>) -> bool {
    let request = MatmulRequest { c, p, e: &Epilogue::NONE, column_sums: false };
    fused.norm.is_some() && rows_mma::of_few_rows(&request, fused).is_some()
}

/// Does the same for block-quantized weights and int8, into columns of a wider matrix with rows `row_stride` elements apart. `residual` must be
/// unset.
pub(in crate::ops) fn run_columns(
    c: &Tensor,
    row_stride: usize,
    p: &MatmulProblem,
    fused: &gemv::Fused<'_>,
) -> Result<bool> {
    let stored = fused.blocks.filter(|_| fused.residual.is_none());
    stored.map_or(Ok(false), |stored| {
        gemv_int8::run(&gemv_int8::GemvInt8Request { c, row_stride, p, fused, stored })
    })
}
