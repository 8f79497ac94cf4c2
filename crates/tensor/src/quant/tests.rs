//! Compares blocks with ggml's. `tools/golden_quant.py` describes the golden file.

use super::*;
use netcl_test_data::{needs_data, test_data};
use safetensors::SafeTensors;
use std::path::Path;

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn goldens() -> Vec<u8> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/quant.safetensors");
    std::fs::read(own).unwrap()
}

/// Reads the stored arrays of an `.npz` file as name and bytes.
fn npz(path: &Path) -> Vec<(String, Vec<u8>)> {
    let file = std::fs::read(path).unwrap();
    let number = |at: usize, n: usize| file[at..at + n].iter().rev().fold(0, |v, b| v << 8 | *b as usize);
    let end = file.windows(4).rposition(|w| w == b"PK\x05\x06").unwrap();
    let (count, mut at) = (number(end + 10, 2), number(end + 16, 4));
    let mut out = Vec::new();
    for _ in 0..count {
        let (size, name, local) = (number(at + 20, 4), number(at + 28, 2), number(at + 42, 4));
        let text = String::from_utf8(file[at + 46..at + 46 + name].to_vec()).unwrap();
        let data = local + 30 + number(local + 26, 2) + number(local + 28, 2);
        let array = &file[data..data + size];
        assert_eq!(&array[..6], b"\x93NUMPY");
        let header = 10 + array[8] as usize + array[9] as usize * 256;
        out.push((text.trim_end_matches(".npy").to_owned(), array[header..].to_vec()));
        at += 46 + name + number(at + 30, 2) + number(at + 32, 2);
    }
    out
}

fn same_bits(format: &Format, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{format}");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert_eq!(a.to_bits(), b.to_bits(), "{format}: element {i} is {a:e}, expected {b:e}");
    }
}

/// Returns the mean weighted squared error of each row.
fn errors(x: &[f32], y: &[f32], row: usize, weights: Option<&[f32]>) -> Vec<f64> {
    let one = |(x, y): (&[f32], &[f32])| {
        let off = |i: usize| f64::from(x[i]) - f64::from(y[i]);
        let weight = |i: usize| weights.map_or(1.0, |w| f64::from(w[i]));
        (0..row).map(|i| weight(i) * off(i) * off(i)).sum::<f64>() / row as f64
    };
    x.chunks_exact(row).zip(y.chunks_exact(row)).map(one).collect()
}

fn there_and_back(format: &Format, x: &[f32], row: usize, weights: Option<&[f32]>) -> Vec<f32> {
    let mut raw = vec![0xa5; format.size(x.len()).unwrap()];
    format.quantise(x, row, weights, &mut raw).unwrap();
    format.dequantised(&raw, x.len()).unwrap()
}

#[test]
fn the_table_is_one() {
    let mut numbers: Vec<u32> = FORMATS.iter().map(|f| f.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), FORMATS.len());
    for format in FORMATS {
        assert!(
            format.block <= format::MAX_BLOCK_ELEMENTS
                && format::MAX_BLOCK_ELEMENTS.is_multiple_of(format.block),
            "{format}"
        );
        assert_eq!(Format::of(format.number), Some(format));
        assert_eq!(Format::named(&format.name.to_lowercase()).unwrap(), format);
    }
    assert_eq!(Format::of(4), None);
    assert!(Format::named("Q9_K").unwrap_err().message().contains("expected one of F32, F16, Q4_0"));
    assert_eq!((Q4_K.size(512), Q4_K.size(100), Q4_K.bits()), (Some(288), None, 4.5));
}

/// Checks that the kernel source of formats has the same sizes as the host.
#[test]
fn texts_of_kernels_have_the_sizes_of_blocks() {
    for format in FORMATS {
        let Some(kernels) = &format.kernels else { continue };
        let number = |name: &str| {
            let line = kernels.text.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
            line.and_then(|n| n.parse::<usize>().ok())
        };
        assert_eq!([number("BLOCK"), number("BYTES")], [Some(format.block), Some(format.bytes)], "{format}");
        assert_eq!(kernels.units.iter().map(|(count, bytes)| count * bytes).sum::<usize>(), format.bytes);
        let head = format!("/* {format}: ");
        assert!(kernels.text.contains(&head), "{format}: its source does not start with {head:?}");
        assert_eq!(kernels.text.contains(&format!("stored_{format}(")), kernels.planes.is_some(), "{format}");
    }
}

#[test]
fn every_format_is_dequantised_to_the_bit() {
    let file = goldens();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    for format in FORMATS.iter().filter(|f| !f.is_plain() && **f != &Q8_1) {
        let [raw, y] = ["raw", "y"].map(|end| tensors.tensor(&format!("{format}.{end}")).unwrap());
        let y = floats(y.data());
        same_bits(format, &format.dequantised(raw.data(), y.len()).unwrap(), &y);
    }
}

#[needs_data("dequant")]
#[test]
fn blocks_that_ggml_made_are_dequantised_to_the_bit() {
    let mut files = 0;
    for path in std::fs::read_dir(test_data!().join("dequant")).unwrap().map(|e| e.unwrap().path()) {
        let arrays = npz(&path);
        let get = |name: &str| &arrays.iter().find(|(n, _)| n == name).unwrap().1;
        let name = path.file_stem().unwrap().to_str().unwrap().rsplit_once('-').unwrap().0;
        let format = Format::named(name).unwrap();
        assert_eq!(u32::from_le_bytes(get("ggml_type")[..4].try_into().unwrap()), format.number);
        let (x, y) = (floats(get("x")), floats(get("y")));
        same_bits(format, &format.dequantised(get("raw"), y.len()).unwrap(), &y);
        let total = |y: &[f32]| errors(&x, y, x.len(), None)[0];
        let (ours, theirs) = (total(&there_and_back(format, &x, 512, None)), total(&y));
        assert!(ours <= theirs, "{format}: mean squared error {ours:e}, ggml's {theirs:e}");
        files += 1;
    }
    assert!(files >= 8);
}

#[test]
fn quantisers_leave_no_more_error_than_ggmls() {
    let file = goldens();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let [x, importance] = ["x", "importance"].map(|name| floats(tensors.tensor(name).unwrap().data()));
    let row = importance.len();
    let mut formats = 0;
    for format in FORMATS.iter().filter(|f| f.can_quantise() && !f.is_plain()) {
        // ggml does not have a function that quantizes to these formats.
        let Ok(theirs) = tensors.tensor(&format!("{format}.error")) else { continue };
        let theirs = floats(theirs.data());
        for (weights, theirs) in [None, Some(&importance[..])].iter().zip(theirs.chunks(x.len() / row)) {
            let ours = errors(&x, &there_and_back(format, &x, row, *weights), row, *weights);
            // Allowance for the rounding of two f16 scales: rows that a format stores exactly except for this are exact in both.
            let rounding =
                errors(&x, &vec![0.0; x.len()], row, *weights).into_iter().map(|all| all * 2f64.powi(-22));
            for (i, ((ours, theirs), rounding)) in ours.iter().zip(theirs).zip(rounding).enumerate() {
                let limit =
                    if f64::from(*theirs) < rounding { rounding } else { f64::from(*theirs) * (1.0 + 1e-6) };
                let weighted = weights.is_some();
                assert!(
                    *ours <= limit,
                    "{format}, row {i}, weighted {weighted}: {ours:e}, ggml's {theirs:e}"
                );
            }
        }
        formats += 1;
    }
    assert_eq!(formats, 18);
}

#[test]
fn what_a_format_can_hold_comes_back() {
    let random = crate::Generator::new(7).uniform(1024, 0.0, 3.0);
    for format in FORMATS.iter().filter(|f| f.can_quantise()) {
        let x: Vec<f32> = random.iter().map(|r| r.floor().min(2.0) - 1.0).collect();
        let y = there_and_back(format, &x, 512, None);
        let coarse = ["Q1_0", "IQ4_NL", "IQ4_XS"].contains(&format.name);
        let worst = x.iter().zip(&y).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        assert!(coarse || worst <= 2e-3, "{format}: {worst}");
        let zeros = there_and_back(format, &[0.0; 512], 256, None);
        assert!(zeros.iter().all(|y| *y == 0.0), "{format}");
    }
}

#[test]
fn extreme_values_stay_finite_and_near() {
    for format in FORMATS.iter().filter(|f| f.can_quantise() && !f.is_plain()) {
        for x in [1e-30f32, 1e-7, 3e4, 1e6, 1e38, f32::MAX, f32::MIN_POSITIVE] {
            let values: Vec<f32> = (0..256).map(|i| if i % 3 == 0 { -x } else { x }).collect();
            let y = there_and_back(format, &values, 256, None);
            assert!(y.iter().all(|y| y.is_finite() || x > 1e9), "{format}: {x:e}");
            // The largest number in NVFP4 is 2688.
            if (1e-3..=4e4).contains(&x) && (x < 2e3 || *format != &NVFP4) {
                let worst = y.iter().zip(&values).map(|(y, x)| (y - x).abs()).fold(0.0, f32::max);
                assert!(worst <= 0.35 * x, "{format}: error {worst} for magnitude {x}");
            }
        }
    }
}

#[test]
fn threads_change_nothing() {
    let x = crate::Generator::new(3).normal(3 * 65_536, 0.0, 1.0);
    let weights: Vec<f32> = (0..65_536).map(|i| (i % 7) as f32).collect();
    for format in [&Q8_0, &Q4_1, &F16] {
        let mut whole = vec![0; format.size(x.len()).unwrap()];
        format.quantise(&x, 65_536, Some(&weights), &mut whole).unwrap();
        let mut parts = Vec::new();
        for x in x.chunks(65_536).flat_map(|x| x.chunks(4096).enumerate()) {
            let mut part = vec![0; format.size(4096).unwrap()];
            let weights = &weights[x.0 * 4096..(x.0 + 1) * 4096];
            format.quantise(x.1, 4096, Some(weights), &mut part).unwrap();
            parts.extend(part);
        }
        assert_eq!(whole, parts, "{format}");
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let mut out = vec![0; 18];
    let x = [1.0; 32];
    let message = |r: Result<()>| r.unwrap_err().message().to_owned();
    let mut bad = x;
    bad[5] = f32::NAN;
    for (found, part) in [
        (
            message(Q4_0.quantise(&x[..31], 31, None, &mut out)),
            "31 elements are not a whole number of Q4_0's blocks of 32",
        ),
        (message(Q4_0.quantise(&x, 32, None, &mut out[..17])), "32 elements of Q4_0 take 18 bytes, found 17"),
        (message(Q4_0.quantise(&x, 16, None, &mut out)), "rows of 16"),
        (message(Q4_0.quantise(&x, 0, None, &mut out)), "rows of 0"),
        (message(Q4_0.quantise(&bad, 32, None, &mut out)), "value 5 of row 0 is NaN"),
        (message(Q4_0.quantise(&x, 32, Some(&x[1..]), &mut out)), "got 31 column weights, expected 32"),
        (message(Q4_0.quantise(&x, 32, Some(&bad), &mut out)), "the weight of column 5 is NaN"),
        (
            message(IQ2_S.quantise(&[], 256, None, &mut [])),
            "IQ2_S is a format that netcl reads but does not write",
        ),
        (message(Q6_K.dequantise(&out, &mut [0.0; 256])), "256 elements of Q6_K take 210 bytes, found 18"),
    ] {
        assert!(found.contains(part), "{found}");
    }
    assert!(Q4_0.quantise(&[], 32, None, &mut []).is_ok());
}
