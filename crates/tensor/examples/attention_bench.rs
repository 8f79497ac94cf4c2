//! Compares attention's variants with the portable one, and measures their speed.
//!
//!     cargo run --release -p netcl-tensor --example attention_bench [-- check | bench] [FILTER]
//!
//! `check` compares the variant that the device prefers with `attention_tile` on the same device. It covers forward and backward, alone and
//! mixed (any forward works with any backward), twice (same bits), with poisoned memory, and next to a sequence of NaN. `bench` prints
//! milliseconds and TFLOP/s. If a kernel hangs, the program stops and prints its name.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)] // a program, not a library

use netcl_kernel::tune::{Params, Tuning};
use netcl_tensor::ops::attention::{AttentionOptions, attention, attention_qkv};
use netcl_tensor::{DType, Device, Generator, Result, Settings, Tensor, no_grad};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time limit for a case in seconds, including the compilation of its kernels.
const CASE_TIMEOUT_SECONDS: u64 = 60;

/// Ends the program if a case takes too long: a wrong barrier hangs the queue without an error.
#[derive(Clone)]
struct Watchdog(Arc<Mutex<(String, Instant)>>);

impl Watchdog {
    fn start() -> Self {
        let dog = Self(Arc::new(Mutex::new((String::new(), Instant::now()))));
        let watched = dog.clone();
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(Duration::from_millis(500));
                let (what, since) = watched.0.lock().unwrap().clone();
                if since.elapsed() > Duration::from_secs(CASE_TIMEOUT_SECONDS) {
                    println!("HANG {what}");
                    eprintln!("HANG {what}");
                    std::process::abort();
                }
            }
        });
        dog
    }
    fn watch(&self, what: &str) {
        *self.0.lock().unwrap() = (what.into(), Instant::now());
    }
}

#[derive(Clone, Copy)]
struct Case {
    dtype: DType,
    batch: usize,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    size: usize,
    causal: bool,
    drop: f32,
    packed: bool,
}

impl Case {
    fn name(&self) -> String {
        let Self { dtype, batch, heads, kv_heads, queries, keys, size, .. } = self;
        let how = if self.causal { "causal" } else { "full" };
        let packed = if self.packed { " packed" } else { "" };
        let drop = if self.drop > 0.0 { " dropout" } else { "" };
        format!("{dtype} B{batch} H{heads}/{kv_heads} T{queries} S{keys} D{size} {how}{packed}{drop}")
    }
    fn options(&self) -> Result<AttentionOptions> {
        let options = AttentionOptions { causal: self.causal, ..AttentionOptions::default() };
        let mut generator = Generator::new(5);
        options.drop(self.drop, [self.batch, self.heads, self.queries, self.keys], &mut generator)
    }
    fn shapes(&self) -> Vec<Vec<usize>> {
        let Self { batch, heads, kv_heads, queries, keys, size, .. } = *self;
        if self.packed {
            return vec![vec![batch, queries, (heads + 2 * kv_heads) * size]];
        }
        let keys = vec![batch, kv_heads, keys, size];
        vec![vec![batch, heads, queries, size], keys.clone(), keys]
    }
    fn result(&self, inputs: &[Tensor]) -> Result<Tensor> {
        if self.packed {
            return attention_qkv(&inputs[0], self.heads, self.kv_heads, self.options()?);
        }
        attention(&inputs[0], &inputs[1], &inputs[2], self.options()?)
    }
    /// Returns the floating-point operations of the forward.
    fn flops(&self) -> f64 {
        let all = 4.0 * (self.batch * self.heads * self.queries * self.keys * self.size) as f64;
        if self.causal { all / 2.0 } else { all }
    }
}

fn inputs(device: &Device, case: &Case) -> Result<(Vec<Tensor>, Tensor)> {
    let mut from = Generator::new(1);
    let mut draw = |shape: &[usize]| Tensor::normal(device, shape, 0.0, 1.0, case.dtype, &mut from);
    let inputs = case.shapes().iter().map(|s| Ok(draw(s)?.parameter("x"))).collect::<Result<Vec<_>>>()?;
    let Case { batch, heads, queries, size, .. } = *case;
    let dy = if case.packed {
        draw(&[batch, queries, heads * size])?
    } else {
        draw(&[batch, heads, queries, size])?
    };
    Ok((inputs, dy))
}

/// Fills the memory that the pool hands out next with NaN.
fn poison(device: &Device, case: &Case) -> Result<()> {
    let mut held = Vec::new();
    let mut shapes = case.shapes();
    shapes.push(vec![case.batch, case.heads, case.queries, case.size]);
    for shape in &shapes {
        for dtype in [case.dtype, case.dtype, DType::F32] {
            held.push(Tensor::full(device, shape.as_slice(), f32::NAN, dtype)?);
        }
    }
    let padded = case.queries.next_multiple_of(256);
    for rows in [case.queries, padded, 2 * padded] {
        for _ in 0..2 {
            held.push(Tensor::full(device, [case.batch, case.heads, rows], f32::NAN, DType::F32)?);
        }
    }
    device.finish()
}

/// Computes result and gradients with these variants of forward and backward.
fn run(
    device: &Device,
    case: &Case,
    (inputs, dy): &(Vec<Tensor>, Tensor),
    [fwd, bwd]: [&str; 2],
) -> Result<(Vec<Vec<f32>>, Vec<&'static str>)> {
    let tuning = Tuning::of(device);
    // Variants are selected per class of shapes. A run shows the class of the case.
    tuning.start_recording();
    case.result(inputs)?.backward_with(dy)?;
    for (job, class) in tuning.stop_recording().tuned {
        for (name, wanted) in [("attention_fwd", fwd), ("attention_bwd", bwd)] {
            if job == name {
                tuning.try_out(name, class, Some(Params::from([(wanted.to_owned(), 1)])));
            }
        }
    }
    poison(device, case)?;
    tuning.start_recording();
    let y = case.result(inputs)?;
    inputs.iter().for_each(|x| x.set_grad(None));
    y.backward_with(dy)?;
    let mut out = vec![y.to_vec()?];
    for x in inputs {
        out.push(x.grad().unwrap().to_vec()?);
    }
    let kernels =
        tuning.stop_recording().kernels.into_keys().filter(|k| k.starts_with("attention")).collect();
    Ok((out, kernels))
}

/// Computes relative Frobenius distances.
fn distances(got: &[Vec<f32>], expected: &[Vec<f32>]) -> Vec<f64> {
    let distance = |(g, e): (&Vec<f32>, &Vec<f32>)| {
        let (mut off, mut norm) = (0.0, 0.0);
        for (a, b) in g.iter().zip(e) {
            off += f64::from(a - b).powi(2);
            norm += f64::from(*b).powi(2);
        }
        (off / norm).sqrt()
    };
    got.iter().zip(expected).map(distance).collect()
}

/// Returns the variants that such a device prefers.
fn fast(case: &Case) -> [&'static str; 2] {
    let backward = if case.size > 96 { "attention_ordered_sm90_bwd" } else { "attention_wgmma_sm90_bwd" };
    ["attention_wgmma_sm90", backward]
}
const TILE: [&str; 2] = ["attention_tile", "attention_tile_bwd"];

fn check(device: &Device, case: &Case, dog: &Watchdog) -> Result<bool> {
    let (name, best) = (case.name(), fast(case));
    let tensors = inputs(device, case)?;
    dog.watch(&format!("{name}: portable"));
    let (expected, _) = run(device, case, &tensors, TILE)?;
    dog.watch(&format!("{name}: {} with {}", best[0], TILE[1]));
    let (forward, _) = run(device, case, &tensors, [best[0], TILE[1]])?;
    dog.watch(&format!("{name}: {} with {}", TILE[0], best[1]));
    let (backward, _) = run(device, case, &tensors, [TILE[0], best[1]])?;
    dog.watch(&format!("{name}: {} with {}", best[0], best[1]));
    let (both, used) = run(device, case, &tensors, best)?;
    let (again, _) = run(device, case, &tensors, best)?;
    let same = both.iter().zip(&again).all(|(a, b)| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits()));
    // Both round to 16 bits. The preferred variant also rounds P and dS.
    let bound = if case.dtype == DType::Bf16 { 6e-3 } else { 8e-4 };
    let (f, b, fb) =
        (distances(&forward, &expected), distances(&backward, &expected), distances(&both, &expected));
    let close = [&f, &b, &fb].into_iter().flatten().all(|d| *d <= bound);
    let fast = used.iter().filter(|k| best.contains(k)).count() == 2;
    let text = |d: &[f64]| d.iter().map(|d| format!("{d:.1e}")).collect::<Vec<_>>().join(" ");
    let ok = close && same && fast;
    println!(
        "{} {name}: fwd [{}] bwd [{}] both [{}]{}{}",
        if ok { "ok  " } else { "FAIL" },
        text(&f),
        text(&b),
        text(&fb),
        if same { "" } else { ", second run differs" },
        if fast { String::new() } else { format!(", used {used:?}") },
    );
    Ok(ok)
}

/// Checks that a sequence of NaN in the batch does not change the sequence before it.
fn check_neighbour(device: &Device, case: &Case, dog: &Watchdog) -> Result<bool> {
    dog.watch(&format!("{}: next to NaN", case.name()));
    let (clean, dy) = inputs(device, case)?;
    let half = |data: Vec<f32>| data[..data.len() / case.batch].to_vec();
    let spoil = |x: &Tensor| {
        let mut data = x.to_vec()?;
        let first = data.len() / case.batch;
        data[first..].fill(f32::NAN);
        Ok(Tensor::from_f32(device, x.shape(), &data, x.dtype())?.parameter("x"))
    };
    let spoiled = clean.iter().map(spoil).collect::<Result<Vec<_>>>()?;
    let (a, _) = run(device, case, &(clean, dy.clone()), fast(case))?;
    let (b, _) = run(device, case, &(spoiled, spoil(&dy)?.detach()), fast(case))?;
    let ok = a.into_iter().map(half).zip(b.into_iter().map(half)).all(|(a, b)| a == b);
    println!("{} {}: next to NaN", if ok { "ok  " } else { "FAIL" }, case.name());
    Ok(ok)
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::Bf16, DType::F16] {
        let base = Case {
            dtype,
            batch: 2,
            heads: 4,
            kv_heads: 4,
            queries: 64,
            keys: 64,
            size: 64,
            causal: true,
            drop: 0.0,
            packed: true,
        };
        let square = |t: usize| Case { queries: t, keys: t, ..base };
        for size in [64, 128] {
            for causal in [true, false] {
                for t in [64, 200, 1000, 1024] {
                    cases.push(Case { size, causal, ..square(t) });
                }
                cases.push(Case { size, causal, kv_heads: 2, ..square(200) });
                cases.push(Case { size, causal, packed: false, kv_heads: 1, ..square(1000) });
                // Enough tiles for three warpgroups, and for groups that process several tiles.
                cases.push(Case { size, causal, batch: 3, heads: 40, kv_heads: 40, ..square(600) });
            }
            for t in [200, 1000] {
                cases.push(Case { size, drop: 0.2, kv_heads: 2, ..square(t) });
            }
            cases.push(Case { size, packed: false, keys: 264, ..square(200) });
            cases.push(Case { size, packed: false, keys: 333, causal: false, ..square(100) });
            cases.push(Case { size, packed: false, keys: 70, causal: false, drop: 0.2, ..square(130) });
        }
        for size in [80, 96, 40, 8] {
            cases.push(Case { size, ..square(200) });
        }
    }
    cases
}

/// Returns the seconds per call: the median of three trials of 100 ms.
fn seconds(device: &Device, call: &dyn Fn() -> Result<()>) -> Result<f64> {
    call()?;
    call()?;
    device.finish()?;
    let start = Instant::now();
    call()?;
    device.finish()?;
    let calls = (0.1 / start.elapsed().as_secs_f64()).clamp(3.0, 4000.0) as u32;
    let mut trials = [0.0; 3];
    for trial in &mut trials {
        let start = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        device.finish()?;
        *trial = start.elapsed().as_secs_f64() / f64::from(calls);
    }
    trials.sort_by(f64::total_cmp);
    Ok(trials[1])
}

fn bench(device: &Device, case: &Case, dog: &Watchdog) -> Result<()> {
    dog.watch(&format!("{}: timing", case.name()));
    let tuning = Tuning::of(device);
    tuning.try_out("attention_fwd", 0, None);
    tuning.try_out("attention_bwd", 0, None);
    let (inputs, dy) = inputs(device, case)?;
    let forward = seconds(device, &|| no_grad(|| case.result(&inputs)).map(drop))?;
    let both = seconds(device, &|| {
        inputs.iter().for_each(|x| x.set_grad(None));
        case.result(&inputs)?.backward_with(&dy)
    })?;
    let rate = |factor: f64, time: f64| factor * case.flops() / time * 1e-12;
    println!(
        "{:<52} fwd {:.4} ms {:.1} TFLOP/s, fwd+bwd {:.4} ms {:.1} TFLOP/s, bwd by difference {:.1}",
        case.name(),
        forward * 1e3,
        rate(1.0, forward),
        both * 1e3,
        rate(3.5, both),
        rate(2.5, both - forward)
    );
    Ok(())
}

fn timed() -> Vec<Case> {
    let case = |[batch, heads, kv_heads, t, size]: [usize; 5], causal: bool, drop: f32| Case {
        dtype: DType::Bf16,
        batch,
        heads,
        kv_heads,
        queries: t,
        keys: t,
        size,
        causal,
        drop,
        packed: true,
    };
    vec![
        case([16, 12, 12, 1024, 64], true, 0.0),
        case([4, 32, 32, 4096, 128], true, 0.0),
        case([64, 12, 12, 1024, 64], true, 0.0),
        case([16, 12, 12, 1024, 64], false, 0.0),
        case([4, 32, 8, 4096, 128], true, 0.0),
        case([4, 32, 32, 4096, 128], false, 0.0),
        case([64, 12, 12, 256, 64], true, 0.0),
        case([16, 12, 12, 1000, 64], true, 0.0),
        case([1, 32, 32, 16_384, 128], true, 0.0),
        case([16, 12, 12, 1024, 80], true, 0.0),
        case([16, 12, 12, 1024, 96], true, 0.0),
        case([64, 6, 6, 256, 64], true, 0.2),
        case([16, 12, 12, 1024, 64], true, 0.2),
    ]
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).peekable();
    let mode = arguments.next_if(|a| a == "check" || a == "bench");
    let filter = arguments.next().unwrap_or_default();
    let wants = |what: &str| mode.as_deref().is_none_or(|m| m == what);
    let dog = Watchdog::start();
    let device = Device::open("auto", &Settings::from_env())?;
    println!("{} ({})", device.capabilities().id, device.capabilities().name);
    let mut failed = 0;
    if wants("check") {
        let all = cases();
        for case in all.iter().filter(|c| c.name().contains(&filter)) {
            let neighbour = case.batch == 2 && case.queries == 200 && case.keys == 200 && case.drop == 0.0;
            let mut outcomes = vec![check(&device, case, &dog)];
            if neighbour {
                outcomes.push(check_neighbour(&device, case, &dog));
            }
            for outcome in outcomes {
                match outcome {
                    Ok(true) => {}
                    Ok(false) => failed += 1,
                    Err(e) => {
                        println!("FAIL {}: {e}", case.name());
                        failed += 1;
                    }
                }
            }
        }
        println!("{failed} failed");
    }
    if wants("bench") {
        for case in timed().iter().filter(|c| c.name().contains(&filter)) {
            if let Err(e) = bench(&device, case, &dog) {
                println!("FAIL {}: {e}", case.name());
                failed += 1;
            }
        }
    }
    std::process::exit(i32::from(failed > 0));
}
