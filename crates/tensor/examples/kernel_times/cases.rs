//! Cases to time: kernels that do not need a vendor's GPU, with data that exceeds all caches.

use crate::measure::TimedCase;
use netcl_kernel::Kernel;
use netcl_kernel::tune::Params;
use netcl_tensor::ops::attention::{AttentionOptions, attention};
use netcl_tensor::ops::cross_entropy::{CrossEntropy, cross_entropy};
use netcl_tensor::ops::dropout::dropout;
use netcl_tensor::ops::embedding::embedding;
use netcl_tensor::ops::layer_norm::layer_norm;
use netcl_tensor::ops::optimizer::{AdamW, Entry, Update};
use netcl_tensor::ops::rms_norm::rms_norm;
use netcl_tensor::{DType, Device, Generator, Result, Tensor};
use std::sync::Arc;

type Family = fn(&Device) -> Result<Vec<TimedCase>>;

/// All cases, created one family after the other, so that their memory is not needed at the same time.
pub const FAMILIES: &[(&str, Family)] = &[
    ("products", products),
    ("moves", moves),
    ("reductions", reductions),
    ("rows", rows),
    ("norms", norms),
    ("losses", losses),
    ("tables", tables),
    ("attentions", attentions),
    ("steps", steps),
];

/// Creates normally distributed values by repeating a million of them.
fn random(device: &Device, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let count: usize = shape.iter().product();
    let drawn = Generator::new(1).normal(count.min(1 << 20), 0.0, 1.0);
    let data: Vec<f32> = (0..count).map(|i| drawn[i % drawn.len()]).collect();
    Tensor::from_f32(device, shape.to_vec(), &data, dtype)
}

fn case(name: impl Into<String>, run: impl Fn() -> Result<Tensor> + 'static) -> TimedCase {
    TimedCase::new(name, move || run().map(drop))
}

static TILE: Kernel = Kernel::new(
    "matmul_tile_timed",
    netcl_kernel::cl_file!("../../src/ops/matmul/algorithms/matmul_tile.cl"),
)
.include(&[
    netcl_kernel::cl_file!("../../src/ops/include/tickets.cl"),
    netcl_kernel::cl_file!("../../src/ops/matmul/algorithms/matmul_tile_async.cl"),
])
// The same option as for the op's large tile: two groups of 256 per multiprocessor.
.options(|device| if device.vendor.starts_with("NVIDIA") { "-cl-nv-maxrregcount=128" } else { "" });

/// BM, BN, TM, TN, BK: tile of C per group and per work-item, and steps of the sum in local memory.
const TILES: [[usize; 5]; 10] = [
    [128, 128, 8, 8, 16],
    [128, 128, 8, 8, 8],
    [128, 128, 4, 8, 16],
    [128, 64, 8, 4, 16],
    [64, 128, 4, 8, 16],
    [64, 64, 4, 4, 16],
    [64, 64, 4, 4, 8],
    [64, 64, 8, 8, 16],
    [32, 64, 4, 4, 16],
    [32, 32, 4, 4, 16],
];

/// Multiplies two square matrices with this tile.
fn product(a: &Tensor, b: &Tensor, tile: [usize; 5]) -> Result<()> {
    let ([m, k], [_, n]) = (a.dims2()?, b.dims2()?);
    let c = Tensor::empty(a.device(), [m, n], a.dtype())?;
    let [bm, bn, tm, tn, bk] = tile;
    let items = bm / tm * (bn / tn);
    let vector = |side: usize| if side * bk / items >= 4 { 4 } else { 1 };
    let launch = TILE.launch("matmul_tile").define("DTYPE", a.dtype().code());
    let launch = launch.define("A_ALONG_K", 1).define("B_ALONG_K", 0);
    let launch = launch.define("VA", vector(bm)).define("VB", vector(bn)).define("WG", items);
    let launch = launch.define("BM", bm).define("BN", bn).define("TM", tm).define("TN", tn).define("BK", bk);
    let launch = launch.read(a.storage()).read(b.storage()).read(b.storage());
    let launch = launch.write(c.storage()).write(c.storage()).scalar(0usize).scalar(0usize);
    let launch = [m, n, k, 1].into_iter().fold(launch, |l, v| l.scalar(v as i32));
    let launch = [0, 0, 0, 0, k, 1, n, 1usize].into_iter().fold(launch, |l, v| l.scalar(v));
    // Each tile is summed by its own group, so the tail is empty.
    let tiles = m.div_ceil(bm) * n.div_ceil(bn);
    let launch = launch.scalar(k as i32).scalar(tiles as i32).scalar(1).scalar(1.0f32).scalar(0);
    launch.groups3([tiles, 1, 1]).run()
}

fn products(device: &Device) -> Result<Vec<TimedCase>> {
    let mut cases = Vec::new();
    for (dtype, size) in [(DType::F32, 1024), (DType::F32, 2048), (DType::Bf16, 2048)] {
        let (a, b) = (random(device, &[size, size], dtype)?, random(device, &[size, size], dtype)?);
        let tiles = if dtype == DType::F32 { &TILES[..] } else { &TILES[..1] };
        for tile in tiles {
            let (a, b, tile) = (a.clone(), b.clone(), *tile);
            let mut case = TimedCase::new(format!("matmul {dtype} {size}"), move || product(&a, &b, tile));
            let names = ["BM", "BN", "TM", "TN", "BK"];
            case.variant =
                names.iter().zip(tile).map(|(n, v)| ((*n).to_string(), v as i64)).collect::<Params>();
            cases.push(case);
        }
    }
    Ok(cases)
}

fn moves(device: &Device) -> Result<Vec<TimedCase>> {
    let x = random(device, &[4096, 4096], DType::F32)?;
    let bits = x.to_dtype(DType::Bf16)?;
    let mut cases = Vec::new();
    let (a, b) = (x.clone(), random(device, &[4096, 4096], DType::F32)?);
    cases.push(case("x + y f32", move || a.add(&b)));
    let a = x.clone();
    cases.push(case("x * 2 f32", move || a.mul_scalar(2.0)));
    let a = x.clone();
    cases.push(case("gelu f32", move || a.gelu()));
    let a = bits.clone();
    cases.push(case("x * 2 bf16", move || a.mul_scalar(2.0)));
    let a = bits.clone();
    cases.push(case("exp bf16", move || a.exp()));
    let a = x.clone();
    cases.push(case("f32 to bf16", move || a.to_dtype(DType::Bf16)));
    let (a, b) = (x.clone(), random(device, &[4096], DType::F32)?);
    cases.push(case("x + bias f32", move || a.add(&b)));
    let a = x.transpose(0, 1)?;
    cases.push(case("transpose f32", move || a.contiguous()));
    let a = bits.transpose(0, 1)?;
    cases.push(case("transpose bf16", move || a.contiguous()));
    let a = x.reshape([16, 1024, 16, 64])?.permute(&[0, 2, 1, 3])?;
    cases.push(case("B,T,H,D to B,H,T,D", move || a.contiguous()));
    let a = x.slice(1, 512..3584)?;
    cases.push(case("slice of columns", move || a.contiguous()));
    let a = x;
    cases.push(case("dropout f32", move || dropout(&a, 0.1, &mut Generator::new(3))));
    Ok(cases)
}

fn reductions(device: &Device) -> Result<Vec<TimedCase>> {
    let x = random(device, &[16_384, 1024], DType::F32)?;
    let a = x.clone();
    let rows = case("sum of rows", move || a.sum(&[1], false)).sweep(&["reduce"]);
    let a = x.clone();
    let columns = case("sum of columns", move || a.sum(&[0], false)).sweep(&["reduce"]);
    let a = x.clone();
    let all = case("mean of all", move || a.mean(&[], false));
    let a = x;
    Ok(vec![rows, columns, all, case("argmax of rows", move || a.argmax(-1))])
}

/// Builds a run of forward and backward of `op` on `x`.
fn both(x: Tensor, op: impl Fn(&Tensor) -> Result<Tensor> + 'static) -> Result<impl Fn() -> Result<()>> {
    let dy = random(x.device(), op(&x)?.dims(), x.dtype())?;
    let x = x.parameter("x");
    Ok(move || {
        op(&x)?.backward_with(&dy)?;
        x.set_grad(None);
        Ok(())
    })
}

fn rows(device: &Device) -> Result<Vec<TimedCase>> {
    let x = random(device, &[16_384, 1024], DType::F32)?;
    let short = random(device, &[262_144, 65], DType::F32)?;
    Ok(vec![
        TimedCase::new("softmax 1024", both(x.clone(), |x| x.softmax(-1))?),
        TimedCase::new("log softmax 1024", both(x, |x| x.log_softmax(-1))?),
        TimedCase::new("softmax 65", both(short, |x| x.softmax(-1))?),
    ])
}

fn norms(device: &Device) -> Result<Vec<TimedCase>> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::Bf16] {
        let n = 768;
        let x = random(device, &[32_768, n], dtype)?;
        let gamma = Tensor::ones(device, [n], dtype)?.parameter("gamma");
        let beta = Tensor::zeros(device, [n], dtype)?.parameter("beta");
        let layer = move |x: &Tensor| {
            gamma.set_grad(None);
            beta.set_grad(None);
            layer_norm(x, &gamma, &beta, 1e-5)
        };
        let name = format!("layer norm {dtype}");
        if dtype == DType::F32 {
            let case = TimedCase::new(name, both(x.clone(), layer.clone())?);
            cases.push(case.sweep(&["norm_rows", "norm_rows_fwd"]));
            let case = TimedCase::new("layer norm plain", both(x, layer)?);
            let plain = case.fixed("layer_norm_variant", &[("layer_norm_plain", 1)]);
            cases.push(plain.sweep(&["layer_norm_plain"]));
        } else {
            cases.push(TimedCase::new(name, both(x, layer)?));
        }
    }
    let gamma = Tensor::ones(device, [1024], DType::Bf16)?.parameter("gamma");
    let x = random(device, &[16_384, 1024], DType::Bf16)?;
    let rms = move |x: &Tensor| {
        gamma.set_grad(None);
        rms_norm(x, &gamma, 1e-5)
    };
    cases.push(TimedCase::new("rms norm bf16", both(x, rms)?));
    Ok(cases)
}

fn losses(device: &Device) -> Result<Vec<TimedCase>> {
    let mut cases = Vec::new();
    for (name, rows, classes, dtype) in
        [("cross entropy", 1024, 50_304, DType::F32), ("cross entropy 65", 262_144, 65, DType::F32)]
    {
        let targets: Vec<u32> =
            (0..rows as u32).map(|i| i.wrapping_mul(2_654_435_761) % classes as u32).collect();
        let targets = Tensor::from_u32(device, [rows], &targets)?;
        let x = random(device, &[rows, classes], dtype)?.parameter("x");
        let case = TimedCase::new(name, move || {
            cross_entropy(&x, &targets, CrossEntropy::default())?.backward()?;
            x.set_grad(None);
            Ok(())
        });
        cases.push(if classes > 1000 { case.sweep(&["cross_entropy_registers"]) } else { case });
    }
    Ok(cases)
}

fn tables(device: &Device) -> Result<Vec<TimedCase>> {
    let (v, c, n) = (50_304, 768, 16_384);
    let ids: Vec<u32> = (0..n as u32).map(|i| i.wrapping_mul(2_654_435_761) % v as u32).collect();
    let ids = Tensor::from_u32(device, [n], &ids)?;
    let table = random(device, &[v, c], DType::F32)?;
    Ok(vec![TimedCase::new("embedding", both(table, move |table| embedding(table, &ids))?)])
}

fn attentions(device: &Device) -> Result<Vec<TimedCase>> {
    let mut cases = Vec::new();
    for (dtype, d, causal) in [(DType::F32, 64, true), (DType::Bf16, 64, true), (DType::F32, 128, false)] {
        let shape = [4, 12, 1024, d];
        let (k, v) =
            (random(device, &shape, dtype)?.parameter("k"), random(device, &shape, dtype)?.parameter("v"));
        let options = AttentionOptions { causal, ..AttentionOptions::default() };
        let op = move |q: &Tensor| {
            k.set_grad(None);
            v.set_grad(None);
            attention(q, &k, &v, options.clone())
        };
        let how = if causal { "causal" } else { "full" };
        cases.push(TimedCase::new(
            format!("attention {dtype} {d} {how}"),
            both(random(device, &shape, dtype)?, op)?,
        ));
    }
    Ok(cases)
}

fn steps(device: &Device) -> Result<Vec<TimedCase>> {
    let mut entries = Vec::new();
    for i in 0..4 {
        let param = random(device, &[2048, 2048], DType::F32)?.parameter(&format!("p{i}"));
        param.set_grad(Some(random(device, &[2048, 2048], DType::F32)?));
        entries.push(Entry { param, weight_decay: 0.1, lr_scale: 1.0 });
    }
    let rule = Arc::new(AdamW { betas: [0.9, 0.95], eps: 1e-8 });
    let update = std::cell::RefCell::new(Update::new(rule, entries, None)?);
    let case = TimedCase::new("adamw", move || update.borrow_mut().step(1e-4, Some(1.0)));
    Ok(vec![case.sweep(&["optimizer"])])
}
