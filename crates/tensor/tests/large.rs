//! Tensors with more than 2^31 elements: the logits of 65536 tokens and 50304 classes, or as many rows as fit on the device. `make large`
//! runs it on Intel's CPU runtime and on the simulated GPU, with suitable memory sizes.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // helpers of tests; a skipped test says so

use netcl_tensor::ops::cross_entropy::{CrossEntropy, Reduction, cross_entropy};
use netcl_tensor::ops::{dropout::dropout, embedding::embedding, layer_norm::layer_norm};
use netcl_tensor::{DType, Device, Generator, Settings, Tensor, no_grad};

const CLASSES: usize = 50_304;
const INNER: usize = 16;
/// Columns of the rows for norms. They divide an even number of rows of classes.
const WIDTH: usize = 768;

/// Returns elements of the two factors, -1 to 1.
fn x(row: usize, j: usize) -> f32 {
    ((row * 7 + j * 3 + row / 5) % 3) as f32 - 1.0
}
fn w(class: usize, j: usize) -> f32 {
    ((class * 5 + j + class / 7) % 3) as f32 - 1.0
}
fn logit(row: usize, class: usize) -> f32 {
    (0..INNER).map(|j| x(row, j) * w(class, j)).sum()
}
fn logits(row: usize) -> Vec<f32> {
    (0..CLASSES).map(|class| logit(row, class)).collect()
}

/// Reads row `at` of a matrix.
fn row(matrix: &Tensor, at: usize) -> Vec<f32> {
    matrix.slice(0, at..at + 1).unwrap().to_vec().unwrap()
}

fn near(what: &str, at: usize, got: &[f32], expected: impl Iterator<Item = f64>) {
    for (column, (got, expected)) in got.iter().zip(expected).enumerate() {
        let bound = 1e-5 + expected.abs() / 128.0;
        assert!(
            (f64::from(*got) - expected).abs() <= bound,
            "{what}: ({at}, {column}) is {got}, expected {expected}"
        );
    }
}

fn softmax(values: &[f32]) -> Vec<f64> {
    let top = values.iter().fold(f32::MIN, |a, b| a.max(*b));
    let sum: f64 = values.iter().map(|v| f64::from(v - top).exp()).sum();
    values.iter().map(|v| f64::from(v - top).exp() / sum).collect()
}

/// Computes GELU of an integer from the normal distribution, from -4 to 4.
fn gelu(v: f32) -> f64 {
    const BELOW: [f64; 9] =
        [3.167e-5, 1.349_9e-3, 2.275e-2, 0.158_655, 0.5, 0.841_345, 0.977_25, 0.998_65, 0.999_968];
    f64::from(v)
        * BELOW.get((v + 4.0) as usize).filter(|_| v >= -4.0).copied().unwrap_or(if v > 0.0 {
            1.0
        } else {
            0.0
        })
}

/// Returns a device with memory for four such tensors, and their number of rows.
fn room() -> Option<(Device, usize)> {
    let name = std::env::var("NETCL_TEST_DEVICE").unwrap_or_else(|_| "auto".into());
    let device = Device::open(&name, &Settings::from_env()).unwrap();
    let capabilities = device.capabilities();
    let fits = |rows: &usize| {
        let bytes = (rows * CLASSES * 2) as u64;
        bytes <= capabilities.max_alloc && 4 * bytes <= capabilities.global_mem
    };
    let rows = [65_536, 43_000].into_iter().find(fits);
    if rows.is_none() {
        println!("skipped: {} does not have room for four tensors of 2^31 elements", capabilities.id);
    }
    rows.map(|rows| (device, rows))
}

/// Returns the first and the last row, and the rows on both sides of element 2^31.
fn sampled(rows: usize) -> [usize; 4] {
    let edge = (1usize << 31) / CLASSES;
    [0, edge, edge + 1, rows - 1]
}

fn copies_and_sums(product: &Tensor) {
    let rows = product.dims()[0];
    let turned = product.permute(&[1, 0]).unwrap().contiguous().unwrap();
    for class in [0, CLASSES - 1] {
        let expected: Vec<f32> = (0..rows).map(|at| logit(at, class)).collect();
        assert!(row(&turned, class) == expected, "a transposed copy's row {class}");
    }
    drop(turned);

    let sums = product.sum_f32(&[1], false).unwrap().to_vec().unwrap();
    for at in sampled(rows) {
        assert_eq!(sums[at], logits(at).iter().sum::<f32>(), "the sum of row {at}");
    }
    let sums = product.sum_f32(&[0], false).unwrap().to_vec().unwrap();
    let columns: Vec<f32> = (0..INNER).map(|j| (0..rows).map(|at| x(at, j)).sum()).collect();
    for class in [0, 1, CLASSES - 1] {
        assert_eq!(
            sums[class],
            (0..INNER).map(|j| columns[j] * w(class, j)).sum::<f32>(),
            "the sum of column {class}"
        );
    }
}

fn elements_and_rows(product: &Tensor) {
    let sampled = sampled(product.dims()[0]);
    let most = product.argmax(1).unwrap().to_vec().unwrap();
    let y = no_grad(|| product.gelu()).unwrap();
    for at in sampled {
        let values = logits(at);
        let top = values.iter().fold(f32::MIN, |a, b| a.max(*b));
        assert_eq!(Some(most[at] as usize), values.iter().position(|v| *v == top), "argmax of row {at}");
        near("gelu", at, &row(&y, at), values.into_iter().map(gelu));
    }
    drop(y);
    let y = no_grad(|| product.softmax(1)).unwrap();
    sampled.iter().for_each(|at| near("softmax", *at, &row(&y, *at), softmax(&logits(*at)).into_iter()));
}

fn tables(table: &Tensor) {
    let (device, rows) = (table.device(), table.dims()[0]);
    let [_, edge, ..] = sampled(rows);
    let ids = Tensor::from_i32(device, [3], &[rows as i32 - 1, 0, edge as i32 + 1]).unwrap();
    let y = embedding(table, &ids).unwrap();
    for (at, id) in [rows - 1, 0, edge + 1].into_iter().enumerate() {
        assert!(row(&y, at) == logits(id), "row {id} of a table");
    }
    y.backward_with(&Tensor::full(device, [3, CLASSES], 2.0, DType::Bf16).unwrap()).unwrap();
    let gradient = table.grad().unwrap();
    table.set_grad(None);
    for (at, expected) in [(0, 2.0), (1, 0.0), (edge, 0.0), (edge + 1, 2.0), (rows - 2, 0.0), (rows - 1, 2.0)]
    {
        assert!(row(&gradient, at).iter().all(|v| *v == expected), "the gradient of row {at} of a table");
    }
}

fn losses(scores: &Tensor) {
    let (device, rows) = (scores.device(), scores.dims()[0]);
    let targets: Vec<i32> = (0..rows).map(|at| (at * 31 % CLASSES) as i32).collect();
    let options = CrossEntropy { reduction: Reduction::None, ..CrossEntropy::default() };
    let loss = cross_entropy(scores, &Tensor::from_i32(device, [rows], &targets).unwrap(), options).unwrap();
    loss.backward_with(&Tensor::full(device, [rows], 1.0, DType::F32).unwrap()).unwrap();
    let (losses, gradient) = (loss.to_vec().unwrap(), scores.grad().unwrap());
    scores.set_grad(None);
    for at in sampled(rows) {
        let (p, target) = (softmax(&logits(at)), targets[at] as usize);
        near("cross entropy", at, &losses[at..=at], [-p[target].ln()].into_iter());
        let expected = p.iter().enumerate().map(|(class, p)| p - if class == target { 1.0 } else { 0.0 });
        near("the gradient of cross entropy", at, &row(&gradient, at), expected);
    }
}

fn short_rows(narrow: &Tensor) {
    let device = narrow.device();
    let one = Tensor::full(device, [WIDTH], 1.0, DType::Bf16).unwrap();
    let zero = Tensor::zeros(device, [WIDTH], DType::Bf16).unwrap();
    let y = no_grad(|| layer_norm(narrow, &one, &zero, 1e-5)).unwrap();
    for at in [0, (1 << 31) / WIDTH, narrow.dims()[0] - 1] {
        let values: Vec<f64> =
            (0..WIDTH).map(|i| at * WIDTH + i).map(|i| f64::from(logit(i / CLASSES, i % CLASSES))).collect();
        let mean = values.iter().sum::<f64>() / WIDTH as f64;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / WIDTH as f64;
        near("layer norm", at, &row(&y, at), values.iter().map(|v| (v - mean) / (variance + 1e-5).sqrt()));
    }
}

fn dropped(device: &Device, rows: usize) {
    let sampled = sampled(rows);
    let ones = Tensor::full(device, [rows, CLASSES], 1.0, DType::Bf16).unwrap();
    let y = no_grad(|| dropout(&ones, 0.25, &mut Generator::new(1))).unwrap();
    let kept = sampled.map(|at| row(&y, at));
    for (at, kept) in sampled.iter().zip(&kept) {
        let zeros = kept.iter().filter(|v| **v == 0.0).count() as f64 / CLASSES as f64;
        assert!((zeros - 0.25).abs() < 0.01, "dropout of row {at}: {zeros} zeros");
        assert!(kept.iter().all(|v| *v == 0.0 || (v - 4.0 / 3.0).abs() < 0.01), "dropout of row {at}");
    }
    assert!(kept[0] != kept[1] && kept[0] != kept[3], "distant rows have the same dropout mask");
}

#[test]
#[ignore = "needs 18 GiB on the device"]
fn more_than_two_to_the_31_elements() {
    let Some((device, rows)) = room() else { return };
    assert!(rows * CLASSES > 1 << 31);
    let factor = |count: usize, f: &dyn Fn(usize, usize) -> f32| {
        let data: Vec<f32> = (0..count * INNER).map(|i| f(i / INNER, i % INNER)).collect();
        Tensor::from_f32(&device, [count, INNER], &data, DType::Bf16).unwrap()
    };
    let (a, b) = (factor(rows, &x), factor(CLASSES, &w));
    let product = no_grad(|| a.matmul(&b.permute(&[1, 0]).unwrap())).unwrap();
    for at in sampled(rows) {
        assert!(row(&product, at) == logits(at), "a product's row {at}");
    }

    copies_and_sums(&product);
    elements_and_rows(&product);
    let parameter = product.parameter("scores");
    tables(&parameter);
    losses(&parameter);
    drop(parameter);
    let narrow = product.reshape([rows * CLASSES / WIDTH, WIDTH]).unwrap();
    drop(product);
    short_rows(&narrow);
    drop(narrow);
    dropped(&device, rows);
}
