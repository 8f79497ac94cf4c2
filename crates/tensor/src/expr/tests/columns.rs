//! Column sums and row reductions in one kernel.

use super::*;

type Single = fn(&Tensor, &Tensor) -> Result<Tensor>;
type Tree = fn(&[Expr]) -> Result<Expr>;

/// Gradients with a sum over rows, with and without a row reduction.
const PAIRS: [(&str, Single, Tree); 4] = [
    ("scaled relu", |x, w| x.mul(w)?.relu(), |t| t[0].mul(&t[1])?.relu()),
    (
        "gelu with bias",
        |x, w| x.add(w)?.tanh()?.mul(&x.add(w)?),
        |t| {
            let x = t[0].add(&t[1])?;
            x.tanh()?.mul(&x)
        },
    ),
    (
        "layer norm",
        |x, w| {
            let d = x.sub(&x.mean(&[-1], true)?)?;
            d.mul(&d.square()?.mean(&[-1], true)?.add_scalar(1e-3)?.rsqrt()?)?.mul(w)
        },
        |t| {
            let d = t[0].sub(&t[0].mean(&[-1])?)?;
            d.mul(&d.square()?.mean(&[-1])?.add_scalar(1e-3)?.rsqrt()?)?.mul(&t[1])
        },
    ),
    ("softmax", |x, w| x.softmax(-1)?.mul(w), |t| t[0].softmax()?.mul(&t[1])),
];

/// Returns the number of rows from which this device computes column sums and row reductions in one kernel.
fn many(device: &Device) -> usize {
    let capabilities = device.capabilities();
    16 * if capabilities.is_cpu() { 8 } else { capabilities.compute_units as usize }
}

fn small() -> [Device; 2] {
    [test_device().unwrap(), Device::open("sim:teaching", &Settings::default()).unwrap()]
}

#[test]
fn gradients_of_rows_and_columns_are_one_kernel() {
    for device in small() {
        let rows = many(&device) + 3;
        for (name, _, tree) in &PAIRS {
            let x = Tensor::from_f32(&device, [rows, 64], &ramp(rows * 64), DType::F32).unwrap();
            let w = Tensor::from_f32(&device, [64], &ramp(64), DType::F32).unwrap();
            let text = explain(&[&x, &w], tree).unwrap();
            let gradient = text.split("# gradient").nth(1).unwrap();
            assert_eq!(gradient.matches("__kernel").count(), 1, "{name}:\n{gradient}");
        }
    }
}

#[test]
fn sums_of_columns_agree_with_single_ops() {
    for device in small() {
        let (f32s, all) = ([DType::F32].as_slice(), DType::FLOATS.as_slice());
        let many = many(&device);
        for (rows, n, dtypes) in [(many + 5, 80, all), (many + 1, 77, f32s), (40, 48, f32s)] {
            for dtype in dtypes.iter().copied() {
                for (name, single, tree) in &PAIRS {
                    let x = Tensor::from_f32(&device, [rows, n], &ramp(rows * n), dtype).unwrap();
                    let w = Tensor::from_f32(&device, [n], &ramp(n), dtype).unwrap();
                    agree(&format!("{name}, {rows} rows of {n}, {dtype}"), [&x, &w], single, tree);
                }
            }
        }
    }
}

/// If rows are not whole vectors, column sums are kept in memory between rows.
#[test]
fn sums_of_columns_of_a_part_of_a_matrix() {
    for device in small() {
        let rows = many(&device) + 2;
        let all = Tensor::from_f32(&device, [rows, 65], &ramp(rows * 65), DType::F32).unwrap();
        let x = all.slice(1, 1..65).unwrap();
        let w = Tensor::from_f32(&device, [64], &ramp(64), DType::F32).unwrap();
        for (name, single, tree) in &PAIRS {
            agree(&format!("{name}, part"), [&x, &w], single, tree);
        }
    }
}

/// Computes a sum over rows first if row values depend on it.
#[test]
fn a_sum_of_columns_that_rows_need_comes_first() {
    for device in small() {
        let rows = many(&device);
        let x = Tensor::from_f32(&device, [rows, 32], &ramp(rows * 32), DType::F32).unwrap();
        let w = Tensor::from_f32(&device, [32], &ramp(32), DType::F32).unwrap();
        let single: Single = |x, w| x.sub(&x.mean(&[0], true)?)?.softmax(-1)?.mul(w);
        let tree: Tree = |t| t[0].sub(&t[0].mean(&[0])?)?.softmax()?.mul(&t[1]);
        agree("softmax of centred columns", [&x, &w], &single, &tree);
    }
}
