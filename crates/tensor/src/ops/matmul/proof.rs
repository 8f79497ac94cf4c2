//! The test that kernels pass which stand on more than OpenCL promises, before their first use.

use super::super::prelude::*;
use super::view::{Matrix, Problem};

/// Whether `run` makes an exact small product, in tiles with edges, of A and B where they lie so: `turned` of each says whether
/// its rows are strided. `run` may return the sums of B's columns too.
pub(super) fn exact(
    device: &Device,
    dtype: DType,
    turned: [bool; 2],
    run: impl Fn(&Tensor, &Problem) -> Result<Option<Tensor>>,
) -> Result<()> {
    // Whole numbers: sums are exact, and bf16 holds them.
    let (m, n, k) = (200, 264, 136);
    let a: Vec<f32> = (0..m * k).map(|i| ((i * 7 + i / k) % 3) as f32 - 1.0).collect();
    let b: Vec<f32> = (0..k * n).map(|i| ((i * 5 + i / n) % 3) as f32 - 1.0).collect();
    let matrix = |[rows, cols]: [usize; 2], data: &[f32], turned: bool| -> Result<Matrix> {
        let of = |dims: [usize; 2], data: &[f32]| -> Result<Matrix> {
            Matrix::of("matmul", "operand", &Tensor::from_f32(device, dims, data, dtype)?)
        };
        if !turned {
            return of([rows, cols], data);
        }
        let data: Vec<f32> = (0..rows * cols).map(|i| data[i % rows * cols + i / rows]).collect();
        of([cols, rows], &data).map(Matrix::transposed)
    };
    let problem = Problem::new(matrix([m, k], &a, turned[0])?, matrix([k, n], &b, turned[1])?, &[])?;
    let c = Tensor::full(device, [m, n], f32::NAN, dtype)?;
    let sums = run(&c, &problem)?;
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
