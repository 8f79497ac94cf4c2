//! Every quantized format keeps its bits: blocks of given numbers, their dequantized elements, and results of kernels on the simulated GPU.
//! The digests are BLAKE3 digests of bytes and of little-endian floats.

use netcl_device::{Device, Settings};
use netcl_tensor::ops::fused_linear::{FusedOps, fused_linear_of_blocks};
use netcl_tensor::quant::{Activations, Blocks, FORMATS, Format};
use netcl_tensor::{DType, Tensor};

/// Number of rows, and elements per row.
const DIMS: [usize; 2] = [6, 512];

/// Returns a 32-bit number for each `i`, computed without library functions.
fn mixed(i: usize) -> u32 {
    let x = (i as u32).wrapping_mul(0x9e37_79b9) ^ 0x85eb_ca6b;
    let x = (x ^ x >> 16).wrapping_mul(0x7feb_352d);
    let x = (x ^ x >> 15).wrapping_mul(0x846c_a68b);
    x ^ x >> 16
}

/// Returns approximately normal values: the sum of four uniform numbers, with occasional outliers.
fn values(count: usize) -> Vec<f32> {
    let one = |i: usize| {
        let bytes = mixed(i).to_le_bytes();
        let sum: i32 = bytes.iter().map(|b| i32::from(*b)).sum();
        (sum - 510) as f32 / if i.is_multiple_of(97) { 64.0 } else { 512.0 }
    };
    (0..count).map(one).collect()
}

/// Returns blocks of a format: quantized values, or, for a format that is only read, any bits that are not NaN.
fn bytes_of(format: &Format, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; format.size(count).unwrap()];
    if format.can_quantise() {
        format.quantise(&values(count), DIMS[1], None, &mut bytes).unwrap();
        return bytes;
    }
    // The second-highest bit of every byte is 0, so that no f16 is infinite at any position.
    bytes.iter_mut().enumerate().for_each(|(i, b)| *b = mixed(i) as u8 & 0xbf);
    bytes
}

fn digest(parts: &[Vec<u8>]) -> String {
    let mut hash = blake3::Hasher::new();
    parts.iter().for_each(|part| _ = hash.update(part));
    hash.finalize().to_hex()[..16].into()
}

fn raw(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Returns results of kernels with a format's blocks: all elements, rows by index, and products with one and with three rows, with floats
/// and with bytes.
fn on_device(device: &Device, format: &'static Format, bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    let ids = Tensor::from_u32(device, [3], &[5, 0, 2]).unwrap();
    for activations in [Activations::Float, Activations::Int8] {
        let blocks = Blocks::with_activations(device, format, DIMS, bytes, activations).unwrap();
        parts.push(raw(&blocks.dense(DType::F32).unwrap().to_vec().unwrap()));
        parts.push(raw(&blocks.gather(&ids, 0.5, DType::F32).unwrap().to_vec().unwrap()));
        for rows in [1, 3] {
            let x = Tensor::from_f32(device, [rows, DIMS[1]], &values(rows * DIMS[1]), DType::F32).unwrap();
            let y = fused_linear_of_blocks(&x, &blocks, FusedOps::default()).unwrap();
            parts.push(raw(&y.to_vec().unwrap()));
        }
    }
    parts
}

#[test]
fn blocks_and_their_elements_have_the_bits_they_had() {
    let found: Vec<(&str, String)> = FORMATS
        .iter()
        .map(|format| {
            let bytes = bytes_of(format, DIMS[0] * DIMS[1]);
            let elements = format.dequantised(&bytes, DIMS[0] * DIMS[1]).unwrap();
            assert!(elements.iter().all(|v| v.is_finite()) || format.is_plain(), "{format}");
            (format.name, digest(&[bytes, raw(&elements)]))
        })
        .collect();
    assert_eq!(found, HOST.map(|(name, digest)| (name, digest.to_owned())));
}

fn device_digests(device: &Device) -> Vec<(&'static str, String)> {
    let formats = FORMATS.iter().filter(|format| format.on_devices());
    formats
        .map(|format| {
            let bytes = bytes_of(format, DIMS[0] * DIMS[1]);
            (format.name, digest(&on_device(device, format, &bytes)))
        })
        .collect()
}

#[test]
fn kernels_make_the_bits_they_made_of_every_format() {
    let device = Device::open("sim", &Settings::default()).unwrap();
    assert_eq!(device_digests(&device), SIMULATED.map(|(name, digest)| (name, digest.to_owned())));
}

/// For comparing two builds on one device. Its driver decides which operations become a multiply-add.
#[test]
#[ignore = "prints digests of the test device"]
#[allow(clippy::print_stdout)]
fn digests_of_the_test_device() {
    let device = netcl_tensor::suite::test_device().unwrap();
    device_digests(&device).iter().for_each(|(name, digest)| println!("{name} {digest}"));
}

/// Digests of blocks and elements on the host.
const HOST: [(&str, &str); 35] = [
    ("F32", "e7273fe3c9faadd0"),
    ("F16", "da0d0c8e1b874c49"),
    ("Q4_0", "0dff38971ea22c92"),
    ("Q4_1", "27d25b0f9b079af8"),
    ("Q5_0", "1ce4fe576b76b471"),
    ("Q5_1", "7b3e00d12ecab5ea"),
    ("Q8_0", "3eb3f26bbfefed37"),
    ("Q8_1", "c5b1a1a3cd385738"),
    ("Q2_K", "c5f6c0e0e5b8437f"),
    ("Q3_K", "44d691983fa63106"),
    ("Q4_K", "c167a7f4f1e51121"),
    ("Q5_K", "7737d20b614ea310"),
    ("Q6_K", "f5cadb9745038d1d"),
    ("Q8_K", "2bad427148a1d168"),
    ("IQ2_XXS", "f52d0257c5860413"),
    ("IQ2_XS", "aa25eb13cbd97aa1"),
    ("IQ3_XXS", "d1190980ebe36e36"),
    ("IQ1_S", "618ffbe8ad0699f5"),
    ("IQ4_NL", "795eadf2194ab0a4"),
    ("IQ3_S", "26d628cbe8f3236d"),
    ("IQ2_S", "d6579c58061da5fd"),
    ("IQ4_XS", "330a56b11e0116af"),
    ("I8", "59be229e521fa83e"),
    ("I16", "7a2cd25f5963f748"),
    ("I32", "d2372358d7f44e89"),
    ("I64", "93d93500fa1c6858"),
    ("F64", "bc20f815176def62"),
    ("IQ1_M", "03634404c1aea28b"),
    ("BF16", "3fd70e3139b8db72"),
    ("TQ1_0", "de0181809304344b"),
    ("TQ2_0", "498a51c86982f819"),
    ("MXFP4", "da9b95669f9baf63"),
    ("NVFP4", "c4dd7c1351325d28"),
    ("Q1_0", "7281aaaf8a443264"),
    ("Q2_0", "ce2ffd788ca3c0ff"),
];

/// Digests of results of the simulated GPU.
const SIMULATED: [(&str, &str); 14] = [
    ("Q4_0", "0707a178e5461fb5"),
    ("Q4_1", "35a6a51cb827167e"),
    ("Q5_0", "4956b3130ccbdae2"),
    ("Q5_1", "f87c58cd1a70bbdd"),
    ("Q8_0", "2b8c14218febe87d"),
    ("Q2_K", "14bed8a5990e6bf8"),
    ("Q3_K", "c4cfa0f7b98eeafe"),
    ("Q4_K", "b58b37707247d637"),
    ("Q5_K", "64a55926bff70dfd"),
    ("Q6_K", "06c1f8f11a6f88a6"),
    ("IQ4_NL", "85a618fa119c27ee"),
    ("IQ4_XS", "f7dc39b14ef365b9"),
    ("TQ2_0", "5bb66ad65b0b3ef2"),
    ("MXFP4", "0e1eaade973e8093"),
];
