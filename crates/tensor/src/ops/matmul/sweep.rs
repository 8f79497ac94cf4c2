//! Times of every plan of the tensor-core product, to fit its cost model. It covers GPT-2's shapes and runs each plan long enough to reach the
//! card's power limit. `SWEEP=M,N,K,LAYOUT,EPILOGUE…` selects other shapes, `SWEEP_TILES=0,1` other tiles, and `SWEEP_SPLITS='StreamK Serial(2)'`
//! other ways to split a sum. Epilogues are timed from registers and through local memory. `SWEEP_STAGED='- tile 5,3,8'` selects the ways: without
//! staging, with the tile's own staging, or with these numbers of stages, boxes per warp and rows per box.

#![allow(clippy::print_stdout)] // tables

use super::algorithms::wgmma::run_plan;
use super::algorithms::{MATMUL, MatmulRequest, wgmma};
use super::epilogue::{Epilogue, EpilogueInputs};
use super::tiles::{Speeds, SplitK, Staging, TILES, Tile, TilePlan};
use super::view::{MatmulProblem, Matrix};
use super::*;
use crate::suite::test_device;
use std::time::Instant;

const SHAPES: &str = "65536,2304,768,NN 65536,768,768,NN 65536,3072,768,NN 65536,768,3072,NN 65536,768,2304,NT \
    65536,768,768,NT 65536,768,3072,NT 65536,3072,768,NT 768,2304,65536,TN 768,768,65536,TN 768,3072,65536,TN 3072,768,65536,TN \
    768,2304,16384,TN 768,768,16384,TN 768,3072,16384,TN 3072,768,16384,TN 8192,50304,768,NT 8192,768,50304,NN \
    50304,768,8192,TN,+";

fn random(device: &Device, rows: usize, cols: usize) -> Tensor {
    let mut generator = crate::random::Generator::new((rows * cols) as u64);
    Tensor::normal(device, [rows, cols], 0.0, 1.0, DType::Bf16, &mut generator).unwrap()
}

/// Returns further defines for an experiment: `SWEEP_DEFINES=NAME=1,OTHER=2`.
pub(super) fn defines() -> Vec<(&'static str, netcl_kernel::Value)> {
    let names = ["EARLY", "GROUP_M", "STAGES"];
    let given = std::env::var("SWEEP_DEFINES").unwrap_or_default();
    let pairs = given.split(',').filter_map(|pair| pair.split_once('='));
    pairs
        .filter_map(|(name, value)| {
            Some((*names.iter().find(|n| **n == name)?, value.parse::<i32>().ok()?.into()))
        })
        .collect()
}

/// Returns the ways of moving C in the epilogue that are timed with `tile`.
fn stagings(tile: &Tile) -> Vec<Option<Staging>> {
    let ways = std::env::var("SWEEP_STAGED").unwrap_or("- tile".into());
    let way = |way: &str| match way {
        "-" => None,
        "tile" => Some(tile.staging()),
        sizes => {
            let sizes: Vec<usize> = sizes.split(',').map(|n| n.parse().unwrap()).collect();
            Some(Staging { stages: sizes[0], boxes: sizes[1], rows: sizes[2] })
        }
    };
    ways.split_whitespace().map(way).collect()
}

fn card() -> String {
    let query = ["--query-gpu=clocks.sm,power.draw.instant", "--format=csv,noheader,nounits"];
    let out = std::process::Command::new("nvidia-smi").args(query).output();
    out.map(|o| String::from_utf8_lossy(&o.stdout).trim().replace(", ", " MHz ")).unwrap_or_default()
}

/// The products of a training step with their epilogues: b bias, r residual, g GELU, d GELU's derivative, c column sums, + accumulation in f32.
const STEP: &str = "65536,2304,768,NN,b 65536,768,768,NN,br 65536,3072,768,NN,bg 65536,768,3072,NN,br 65536,768,2304,NT, \
    65536,768,768,NT, 65536,768,3072,NT, 65536,3072,768,NT,d 768,2304,65536,TN,c 768,768,65536,TN,c 768,3072,65536,TN,c \
    3072,768,65536,TN,c 8192,50304,768,NT, 8192,768,50304,NN, 50304,768,8192,TN,+ 65536,3072,768,NN,b 65536,3072,768,NT,";

/// Returns the microseconds per run of `run` over at least `seconds`, and the GPU's clock and power during that time.
fn sustained(device: &Device, work: usize, seconds: f64, run: &dyn Fn()) -> (f64, String) {
    let batch = (3e11 / work as f64).ceil().max(1.0) as usize * 4;
    let for_seconds = |limit: f64| {
        let (begun, mut runs) = (Instant::now(), 0);
        while begun.elapsed().as_secs_f64() < limit {
            (0..batch).for_each(|_| run());
            device.finish().unwrap();
            runs += batch;
        }
        begun.elapsed().as_secs_f64() / runs as f64
    };
    for_seconds(0.5 * seconds);
    let asked = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_secs_f64(0.5 * seconds));
        card()
    });
    (for_seconds(seconds) * 1e6, asked.join().unwrap())
}

/// Formats two times in microseconds: of the host to enqueue `run`, and of the device to run it back to back in a graph.
fn host_and_device(device: &Device, run: &dyn Fn()) -> String {
    run();
    device.finish().unwrap();
    const RUNS: usize = 50;
    let least =
        |measure: &dyn Fn() -> f64| (0..20).map(|_| measure()).fold(f64::MAX, f64::min) / RUNS as f64 * 1e6;
    let host = least(&|| {
        let begun = Instant::now();
        (0..RUNS).for_each(|_| run());
        let asked = begun.elapsed().as_secs_f64();
        device.finish().unwrap();
        asked
    });
    let (graph, ()) = crate::graph::Graph::capture(device, || {
        (0..RUNS).for_each(|_| run());
        Ok(())
    })
    .unwrap();
    let on_device = least(&|| {
        let begun = Instant::now();
        (0..4).for_each(|_| graph.replay().unwrap());
        device.finish().unwrap();
        begun.elapsed().as_secs_f64() / 4.0
    });
    format!("{on_device:.1} us (host {host:.1})")
}

#[allow(clippy::too_many_lines)] // plans and their times, in one loop
fn time(shapes: &str, tiles: &[usize], every_split: bool) {
    let device = test_device().unwrap();
    let seconds: f64 = std::env::var("SWEEP_SECONDS").map_or(0.3, |s| s.parse().unwrap());
    for shape in std::env::var("SWEEP").unwrap_or(shapes.into()).split_whitespace() {
        let parts: Vec<&str> = shape.split(',').collect();
        let [m, n, k] = [0, 1, 2].map(|i| parts[i].parse::<usize>().unwrap());
        let (layout, epilogue) = (parts[3], parts.get(4).copied().unwrap_or_default());
        let operand = |transposed: bool, r: usize, c: usize| {
            let x = if transposed { random(&device, c, r) } else { random(&device, r, c) };
            if transposed { x.permute(&[1, 0]).unwrap() } else { x }
        };
        let a = operand(layout.starts_with('T'), m, k);
        let b = operand(layout.ends_with('T'), k, n);
        let to_sum = epilogue.contains('+');
        let c = Tensor::zeros(&device, [m, n], if to_sum { DType::F32 } else { DType::Bf16 }).unwrap();
        let (bias, aux) = (random(&device, 1, n).reshape([n]).unwrap(), random(&device, m, n));
        let e = Epilogue {
            alpha: 1.0,
            bias: epilogue.contains('b').then_some(&bias),
            add: false,
            aux: match epilogue.chars().last() {
                Some('r') => EpilogueInputs::Residual(&aux),
                Some('g') => EpilogueInputs::Gelu(&aux),
                Some('d') => EpilogueInputs::GeluGrad(&aux),
                _ => EpilogueInputs::None,
            },
        };
        let matrix = |x: &Tensor, name| Matrix::of("matmul", name, x).unwrap();
        let problem = MatmulProblem::new(matrix(&a, "a"), matrix(&b, "b"), &[]).unwrap();
        let mut plans: Vec<TilePlan> = Vec::new();
        let chosen =
            std::env::var("SWEEP_TILES").map(|all| all.split(',').map(|t| t.parse().unwrap()).collect());
        for tile in chosen.unwrap_or(tiles.to_vec()).iter().map(|t| TILES[*t]) {
            let count = tile.count(m, n);
            let split = if to_sum { SplitK::Accumulate { add: true } } else { SplitK::None };
            let ways = if to_sum || every_split { vec![None] } else { stagings(&tile) };
            plans.extend(ways.into_iter().map(|staging| TilePlan { tile, split, staging }));
            if every_split && count < 132 && !to_sum {
                let even = (1..=4).map(|rounds| (132 * rounds) / count).filter(|n| (2..=24).contains(n));
                let mut counts: Vec<usize> = even.flat_map(|n| [n, n + 1]).chain([2]).collect();
                counts.sort_unstable();
                counts.dedup();
                let splits = counts.into_iter().flat_map(|n| [SplitK::Workspace(n), SplitK::Serial(n)]);
                plans.extend(splits.chain([SplitK::StreamK]).map(|split| TilePlan {
                    tile,
                    split,
                    staging: None,
                }));
            }
        }
        if !every_split && layout.starts_with('T') && !to_sum {
            plans = vec![TilePlan::of([m, n, k], &Speeds::on(&device), true)];
        }
        let only = std::env::var("SWEEP_SPLITS").unwrap_or_default();
        plans.retain(|plan| {
            only.is_empty() || only.split_whitespace().any(|s| s == format!("{:?}", plan.split))
        });
        for plan in plans {
            let run = || drop(run_plan(&c, &problem, &e, plan, epilogue.contains('c')).unwrap());
            let (us, card) = sustained(&device, m * n * k, seconds, &run);
            let speed = 2.0 * (m * n * k) as f64 / us * 1e-6;
            let tile = TILES.iter().position(|t| *t == plan.tile).unwrap();
            let way = plan
                .staging
                .map_or(String::new(), |s| format!(" staged {},{},{}", s.stages, s.boxes, s.rows));
            println!("{shape} tile {tile} {:?}{way}: {us:.1} us {speed:.0} TFLOP/s, {card}", plan.split);
        }
    }
}

#[test]
#[ignore = "minutes of an H200"]
fn plans_timed() {
    time(SHAPES, &[0, 1, 2, 3], true);
}

#[test]
#[ignore = "minutes of an H200"]
fn epilogues_timed() {
    time(STEP, &[0, 1, 3], false);
}

/// Times 16-bit products with unaligned lines: `mma.sync` reads them in place, wgmma needs copies.
#[test]
#[ignore = "seconds of an H200"]
fn uneven_timed() {
    const SHAPES: &str = "1023,1025,511,NN 1023,1025,511,NT 1023,1025,511,TN 2047,2049,2047,NN 2047,2049,2047,NT 2047,2049,2047,TN \
        1001,1003,1005,NN 257,129,65,NN 257,129,1001,NN 64,1001,333,NN 64,1002,334,NT 127,50257,768,NT 4096,50257,768,NT 16384,65,384,NT \
        16384,384,65,NN 65,384,16384,TN";
    let device = test_device().unwrap();
    for shape in std::env::var("SWEEP").unwrap_or(SHAPES.into()).split_whitespace() {
        let parts: Vec<&str> = shape.split(',').collect();
        let [m, n, k] = [0, 1, 2].map(|i| parts[i].parse::<usize>().unwrap());
        let operand = |transposed: bool, r: usize, c: usize| {
            let x = if transposed { random(&device, c, r) } else { random(&device, r, c) };
            if transposed { x.permute(&[1, 0]).unwrap() } else { x }
        };
        let (a, b) = (operand(parts[3].starts_with('T'), m, k), operand(parts[3].ends_with('T'), k, n));
        let matrix = |x: &Tensor| Matrix::of("matmul", "operand", x).unwrap();
        let problem = MatmulProblem::new(matrix(&a), matrix(&b), &[]).unwrap();
        let c = Tensor::zeros(&device, [m, n], DType::Bf16).unwrap();
        let request = MatmulRequest { c: &c, p: &problem, e: &Epilogue::NONE, column_sums: false };
        let by_mma = || drop(MATMUL.with("matmul_mma_sm80", &request).unwrap());
        let by_wgmma = || drop(MATMUL.with("matmul_wgmma_sm90", &request).unwrap());
        let copies = || drop(wgmma::with_aligned_lines(&problem).unwrap());
        let times = [&by_mma as &dyn Fn(), &by_wgmma, &copies].map(|run| host_and_device(&device, run));
        let chosen = MATMUL.choose(&request).unwrap().0.name();
        let estimates: Vec<_> =
            MATMUL.all(&request).into_iter().map(|(a, micros, _)| (a.name(), micros)).collect();
        println!(
            "{shape}: mma {}, wgmma {}, copies of it {}; {chosen} of {estimates:?}",
            times[0], times[1], times[2]
        );
    }
}

/// Times f32 products on tensor cores and on f32 units. It prints the RMS error of the first row relative to the result. `SWEEP=M,N,K,LAYOUT…`
/// selects other shapes.
#[test]
#[ignore = "seconds of an H200"]
fn f32_timed() {
    const SHAPES: &str = "4096,2304,768,NN 4096,768,768,NN 4096,3072,768,NN 4096,768,3072,NN 4096,768,2304,NT 4096,768,768,NT \
        4096,768,3072,NT 4096,3072,768,NT 768,2304,4096,TN 768,768,4096,TN 768,3072,4096,TN 3072,768,4096,TN 4096,50304,768,NT \
        4096,768,50304,NN 50304,768,4096,TN 512,512,512,NN 1024,1024,1024,NN 2048,2048,2048,NT 4096,4096,4096,NN \
        4096,4096,4096,NT 4096,4096,4096,TN 8192,8192,8192,NN";
    let device = test_device().unwrap();
    let draw = |rows: usize, cols: usize, transposed: bool| {
        let mut generator = crate::random::Generator::new((rows * cols) as u64);
        let dims = if transposed { [cols, rows] } else { [rows, cols] };
        let x = Tensor::normal(&device, dims, 0.0, 1.0, DType::F32, &mut generator).unwrap();
        if transposed { x.permute(&[1, 0]).unwrap() } else { x }
    };
    for shape in std::env::var("SWEEP").unwrap_or(SHAPES.into()).split_whitespace() {
        let parts: Vec<&str> = shape.split(',').collect();
        let [m, n, k] = [0, 1, 2].map(|i| parts[i].parse::<usize>().unwrap());
        let (a, b) = (draw(m, k, parts[3].starts_with('T')), draw(k, n, parts[3].ends_with('T')));
        let matrix = |x: &Tensor| Matrix::of("matmul", "operand", x).unwrap();
        let problem = MatmulProblem::new(matrix(&a), matrix(&b), &[]).unwrap();
        let c = Tensor::zeros(&device, [m, n], DType::F32).unwrap();
        print!("{shape}:");
        let request = MatmulRequest { c: &c, p: &problem, e: &Epilogue::NONE, column_sums: false };
        for (algorithm, _, plan) in MATMUL.all(&request) {
            let (name, run) = (algorithm.name(), |_: &Tensor| (algorithm.run)(&request, &plan));
            let us = host_and_device(&device, &|| drop(run(&c).unwrap()));
            // Compare the first row with f64.
            let row: Vec<f32> = c.slice(0, 0..1).unwrap().to_vec().unwrap();
            let host = |x: &Tensor| x.to_vec().unwrap();
            let (a0, rows) = (host(&a.slice(0, 0..1).unwrap()), n.min(256));
            let b0 = host(&b.slice(1, 0..rows).unwrap());
            let exact =
                |j: usize| (0..k).map(|i| f64::from(a0[i]) * f64::from(b0[i * rows + j])).sum::<f64>();
            let square = (0..rows).map(|j| (f64::from(row[j]) - exact(j)).powi(2)).sum::<f64>();
            let error = (square / rows as f64 / k as f64).sqrt();
            print!(" {name} {us} error {error:.2e};");
        }
        println!();
    }
}
