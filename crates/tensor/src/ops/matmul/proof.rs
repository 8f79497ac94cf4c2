//! Test of kernels that rely on more than OpenCL guarantees. It runs before their first use.

use super::super::prelude::*;
use super::epilogue::Tree;
use super::view::{MatmulProblem, Matrix};
use netcl_kernel::Text;

/// m, n and k of a small product: its tiles have edges, its lines start at multiples of 16 bytes.
pub(super) const ALIGNED: [usize; 3] = [200, 264, 136];

/// Checks that `run` computes a small product of `(m, n, k)` exactly, in tiles with edges. `transposed` says for A and B whether the rows are
/// strided. `run` may also return the sums of B's columns.
pub(super) fn exact(
    device: &Device,
    dtype: DType,
    [m, n, k]: [usize; 3],
    transposed: [bool; 2],
    run: impl Fn(&Tensor, &MatmulProblem) -> Result<Option<Tensor>>,
) -> Result<()> {
    // Integers: their sums are exact, and bf16 represents them.
    let a: Vec<f32> = (0..m * k).map(|i| ((i * 7 + i / k) % 3) as f32 - 1.0).collect();
    let b: Vec<f32> = (0..k * n).map(|i| ((i * 5 + i / n) % 3) as f32 - 1.0).collect();
    let matrix = |[rows, cols]: [usize; 2], data: &[f32], transposed: bool| -> Result<Matrix> {
        let of = |dims: [usize; 2], data: &[f32]| -> Result<Matrix> {
            Matrix::of("matmul", "operand", &Tensor::from_f32(device, dims, data, dtype)?)
        };
        if !transposed {
            return of([rows, cols], data);
        }
        let data: Vec<f32> = (0..rows * cols).map(|i| data[i % rows * cols + i / rows]).collect();
        of([cols, rows], &data).map(Matrix::transposed)
    };
    let problem =
        MatmulProblem::new(matrix([m, k], &a, transposed[0])?, matrix([k, n], &b, transposed[1])?, &[])?;
    let c = Tensor::full(device, [m, n], f32::NAN, dtype)?;
    let sums = run(&c, &problem)?;
    if device.settings().no_results {
        return Ok(());
    }
    let check = |what: &str, i: usize, got: f32, expected: f32| match got == expected {
        true => Ok(()),
        false => Err(Error::launch(format!("{what} {i} of a small product is {got}, expected {expected}"))),
    };
    for (i, got) in c.to_vec()?.into_iter().enumerate() {
        check("element", i, got, (0..k).map(|j| a[i / n * k + j] * b[j * n + i % n]).sum())?;
    }
    for (i, got) in sums.map_or(Ok(Vec::new()), |sums| sums.to_vec())?.into_iter().enumerate() {
        check("sum of column", i, got, (0..k).map(|j| b[j * n + i]).sum())?;
    }
    Ok(())
}

/// Checks that `run` passes 24 significant bits through a product unchanged. One operand has them. The other has a single 1 in each column (or
/// row), so the product selects from the first operand's numbers.
pub(super) fn selects(device: &Device, run: impl Fn(&Tensor, &MatmulProblem) -> Result<()>) -> Result<()> {
    let [m, n, k] = ALIGNED;
    let number = |i: usize| {
        let bits = (i as u32).wrapping_mul(0x9e37_79b9);
        f32::from_bits(bits & 0x807f_ffff | (120 + bits % 13) << 23)
    };
    let matrix = |rows: usize, cols: usize, at: &dyn Fn(usize, usize) -> f32| -> Result<Matrix> {
        let data: Vec<f32> = (0..rows * cols).map(|i| at(i / cols, i % cols)).collect();
        Matrix::of("matmul", "operand", &Tensor::from_f32(device, [rows, cols], &data, DType::F32)?)
    };
    let one = |hit: bool| if hit { 1.0 } else { 0.0 };
    let of_a = MatmulProblem::new(
        matrix(m, k, &|i, j| number(i * k + j))?,
        matrix(k, n, &|i, j| one(i == j % k))?,
        &[],
    )?;
    let of_b = MatmulProblem::new(
        matrix(m, k, &|i, j| one(j == i % k))?,
        matrix(k, n, &|i, j| number(i * n + j))?,
        &[],
    )?;
    for (problem, expected) in [
        (of_a, &(|i: usize| number(i / n * k + i % n % k)) as &dyn Fn(usize) -> f32),
        (of_b, &|i: usize| number(i / n % k * n + i % n)),
    ] {
        let c = Tensor::full(device, [m, n], f32::NAN, DType::F32)?;
        run(&c, &problem)?;
        if device.settings().no_results {
            continue;
        }
        for (i, got) in c.to_vec()?.into_iter().enumerate() {
            if got != expected(i) {
                let message =
                    format!("element {i} of a product with ones is {got:e}, expected {:e}", expected(i));
                return Err(Error::launch(message));
            }
        }
    }
    Ok(())
}

/// Checks that a vectorized epilogue computes integers in bf16 exactly. `run` gets an expression that adds `other` and clamps negative results to
/// 0, and writes to `got`. `plain` has the product's elements before the expression.
pub(in crate::ops) fn expression(
    plain: &Tensor,
    run: impl FnOnce(&Tensor, &Tree<'_>) -> Result<()>,
) -> Result<()> {
    let (device, dims) = (plain.device(), plain.shape().clone());
    let values: Vec<f32> = (0..plain.count()).map(|i| ((i * 5 + i / 11) % 9) as f32 - 4.0).collect();
    let other = Tensor::from_f32(device, dims.clone(), &values, DType::Bf16)?;
    let got = Tensor::full(device, dims, f32::NAN, DType::Bf16)?;
    let functions = "static inline FV tree_v(FV sum, ulong row, ulong column, ulong n TREE_PARAMETERS) {\n\
                     return fmax(sum + LDV_BF16(e0 + f0 + row * n + column), (FV)(0.0f));\n}\n";
    let tree = Tree {
        functions: Text::new(functions),
        parameters: Text::new(", __global const ushort *e0, ulong f0"),
        arguments: Text::new(", e0, f0"),
        inputs: std::slice::from_ref(&other),
        outputs: &[],
        scalars: &[],
        product: &got,
        apart: &|| Ok(()),
    };
    run(&got, &tree)?;
    if device.settings().no_results {
        return Ok(());
    }
    let (plain, got) = (plain.to_vec()?, got.to_vec()?);
    for (i, ((plain, other), got)) in plain.iter().zip(&values).zip(&got).enumerate() {
        let expected = (plain + other).max(0.0);
        if *got != expected {
            let message = format!("element {i} of a small expression is {got}, expected {expected}");
            return Err(Error::launch(message));
        }
    }
    Ok(())
}
