//! Stores that bypass the caches, meant for results larger than the caches. A device that reports a last-level cache of one byte uses them
//! at every size, and must give the same bits as a device that does not use them.

#![allow(clippy::unwrap_used)] // helpers of tests, which clippy takes for production code

use netcl_tensor::ops::{OPS, streaming_stores};
use netcl_tensor::{DType, Device, Settings, Tensor, ops};

fn device(last_cache: u64) -> Device {
    let name = std::env::var("NETCL_TEST_DEVICE").unwrap_or_else(|_| "auto".into());
    Device::open(&name, &Settings { last_cache: Some(last_cache), ..Settings::from_env() }).unwrap()
}

/// Creates all bit patterns that `dtype` preserves, unordered.
fn ramp(device: &Device, shape: &[usize], dtype: DType) -> Tensor {
    let data: Vec<f32> = (0..shape.iter().product())
        .map(|i: usize| (i.wrapping_mul(2_654_435_761) >> 7) as f32 % 251.0)
        .collect();
    Tensor::from_f32(device, shape, &data, dtype).unwrap()
}

/// Compares `f` with such stores (on CPUs; other devices have none) and without.
fn both(f: impl Fn(&Device) -> Vec<f32>, what: &str) {
    let [with, without] = [1, 0].map(|cache| f(&device(cache)));
    assert!(!with.is_empty() && with == without, "{what}: stores past the caches change the result");
}

#[test]
fn the_setting_decides() {
    for (last_cache, expected) in [(0, false), (1, true), (799, true), (800, false)] {
        let y = Tensor::zeros(&device(last_cache), [100], DType::F32).unwrap();
        assert_eq!(streaming_stores(&y), expected && y.device().capabilities().is_cpu(), "{last_cache}");
    }
}

/// Rows of whole vectors, for which such stores are used; other rows, for which they must not be used; partial tiles; several axes.
#[test]
fn transposed_copies_of_every_size_and_place() {
    for dtype in [DType::F32, DType::Bf16, DType::U32] {
        for [columns, rows] in
            [[8, 8], [16, 40], [64, 129], [136, 200], [264, 71], [33, 50], [100, 260], [1, 24], [24, 1]]
        {
            let run = |device: &Device| {
                let x = ramp(device, &[columns, rows], dtype);
                x.permute(&[1, 0]).unwrap().to_vec().unwrap()
            };
            both(run, &format!("{dtype} {columns} x {rows}"));
        }
        for (window, axes) in [(0..40, [0, 2, 1]), (3..19, [2, 0, 1]), (5..38, [0, 2, 1])] {
            let run = |device: &Device| {
                let x = ramp(device, &[6, 40, 70], dtype);
                x.slice(1, window.clone())
                    .unwrap()
                    .permute(&axes)
                    .unwrap()
                    .contiguous()
                    .unwrap()
                    .to_vec()
                    .unwrap()
            };
            both(run, &format!("{dtype} rows {window:?} as {axes:?}"));
        }
    }
}

/// Whole cache lines, for which such stores are used; other lengths, for which they must not be used.
#[test]
fn copies_of_rows_of_every_length_and_place() {
    for dtype in [DType::F32, DType::Bf16, DType::U32] {
        for (size, window) in [(64, 0..64), (64, 32..64), (96, 5..69), (17, 0..17), (8, 1..7)] {
            let run = |device: &Device| {
                let x = ramp(device, &[3, 11, 5, size], dtype);
                let x = x.slice(3, window.clone()).unwrap().permute(&[0, 2, 1, 3]).unwrap();
                x.contiguous().unwrap().to_vec().unwrap()
            };
            both(run, &format!("{dtype} {window:?} of {size}"));
        }
    }
}

#[test]
fn embeddings_of_every_width() {
    for dtype in DType::FLOATS {
        for width in [1, 16, 17, 32, 48, 100, 112, 768] {
            let run = |device: &Device| {
                let table = ramp(device, &[29, width], dtype);
                let ids: Vec<u32> = (0..61).map(|i| i * 7 % 30).filter(|id| *id < 29).collect();
                let ids = Tensor::from_u32(device, [ids.len()], &ids).unwrap();
                ops::embedding::embedding(&table, &ids).unwrap().to_vec().unwrap()
            };
            both(run, &format!("{dtype} width {width}"));
        }
    }
}

/// Other operations that request such stores.
#[test]
fn the_suite_of_what_moves_data() {
    let device = device(1);
    for entry in OPS.iter().filter(|e| e.name.starts_with("embedding") || e.name.starts_with("join")) {
        entry.suite(&device, DType::F32).unwrap();
    }
}
