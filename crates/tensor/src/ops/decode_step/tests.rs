use super::check::{ChooseFormat, MIXES, Net, Small};
use super::*;
use crate::quant::{Blocks, FORMAT_LIST, Format, list_of};
use crate::random::Generator;
use crate::suite::test_device;
use netcl_device::Settings;

/// Uploads blocks in planes, and checks that the file's bytes and the elements can be read back.
fn planes(device: &Device, format: &'static Format, dims: [usize; 2], bytes: &[u8]) -> Result<Blocks> {
    let blocks = Blocks::of_planes(device, format, dims, bytes)?;
    assert_eq!(blocks.to_bytes()?, bytes, "{format}");
    let (dense, exact) = (blocks.dense(DType::F32)?.to_vec()?, format.dequantised(bytes, dims[0] * dims[1])?);
    assert!(dense.iter().zip(&exact).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs() + 1e-9), "{format}");
    Ok(blocks)
}

/// Returns the largest error of the logits of several tokens, relative to their root mean square; `biased`: with biases and head norms.
fn error(device: &Device, dtype: DType, choose: ChooseFormat, (texts, biased): (usize, bool)) -> f64 {
    let (device, text, from) = (device.clone(), WeightPath::Direct, Generator::new(7));
    let mut net = Net { device, text, dtype, from, choose, make: planes, biased, texts };
    let mut small = net.small().unwrap();
    let mut worst = 0.0;
    for t in 0..5 {
        let off = small.error(&net.tokens().unwrap(), t).unwrap();
        // NaN is wrong too.
        assert!(off < 1.0, "{texts} texts, token {t}: {off}");
        worst = f64::max(worst, off);
    }
    agreement(&small, &net.tokens().unwrap());
    worst
}

/// Checks agrees() after five tokens. A step agrees with its own results. It does not agree with other logits, nor with NaN (which keeps the kernel
/// in use), nor if one head's keys are one position later.
fn agreement(small: &Small, x: &Tensor) {
    let position = small.positions(x.device(), 5).unwrap();
    let (step, run) = (&small.step, |position: usize| small.run(x, position).unwrap());
    let right = run(5);
    assert!(!step.agrees(x, &position, &right.mul_scalar(f32::NAN).unwrap()), "a damaged model");
    assert!(step.agrees(x, &position, &right));
    assert!(!step.agrees(x, &position, &right.mul_scalar(1.5).unwrap()));
    assert!(run(8 + 4).to_vec().unwrap().iter().all(|v| v.is_nan()), "no room");
    run(5);
    let cache = step.caches[0].slice(0, 0..1).unwrap().slice(1, 0..5).unwrap();
    let keys = cache.slice(2, 0..1).unwrap();
    let mut values = keys.to_vec().unwrap();
    values.rotate_right(keys.dims()[3]);
    let moved = Tensor::from_f32(x.device(), keys.dims(), &values, keys.dtype()).unwrap();
    cache.write_slice(2, 0, &moved).unwrap();
    assert!(!step.agrees(x, &position, &right), "keys of other positions");
}

/// Opens the test device, or a simulated device if the test device does not run the kernel.
fn device() -> Device {
    let device = test_device().unwrap();
    if WeightPath::Direct.runs_on(&device, 1) {
        device
    } else {
        Device::open("sim:rx7900xtx", &Settings::from_env()).unwrap()
    }
}

#[test]
fn dense_models() {
    let device = device();
    for (dtype, bound) in [(DType::F32, 1e-5), (DType::F16, 2e-3), (DType::Bf16, 6e-3)] {
        let off = error(&device, dtype, |_, _| None, (1, dtype == DType::F16));
        assert!(off < bound, "{dtype}: {off}");
    }
}

#[test]
fn quantised_models() {
    let device = device();
    for (i, choose) in MIXES.into_iter().enumerate() {
        let off = error(&device, DType::F16, choose, (1, i % 2 == 0));
        // Activations have 8 bits: half a step of 1/127 of a group's largest is about 0.7 % of a normal value, in the maps of each of two layers.
        assert!(off < 3e-2, "{i}: {off}");
    }
}

/// Tests that each text of a step equals its f64 reference, at its own position, and also next to unused texts.
#[test]
fn several_texts() {
    let device = device();
    for (texts, dtype, bound) in [(2, DType::F32, 1e-5), (4, DType::F16, 2e-3), (3, DType::Bf16, 6e-3)] {
        let off = error(&device, dtype, |_, _| None, (texts, dtype == DType::F16));
        assert!(off < bound, "{texts} texts in {dtype}: {off}");
    }
    for (texts, choose) in [(2, MIXES[0]), (4, MIXES[1])] {
        let off = error(&device, DType::F16, choose, (texts, true));
        assert!(off < 3e-2, "{texts} texts: {off}");
    }
}

#[test]
fn the_check_of_a_device_runs_models() {
    assert_eq!(check::check(&device()).unwrap(), 4);
    let teaching = Device::open("sim:teaching", &Settings::default()).unwrap();
    assert_eq!(check::check(&teaching).unwrap(), 0, "no sub-groups");
}

/// Defines of a Llama in f16, without the sizes.
const USUAL: [(&str, usize); 27] = [
    ("TEXTS", 1),
    ("DTYPE", 1),
    ("HALF", 32),
    ("GROUPS", 132),
    ("EMBEDDED", 1),
    ("ACT", 0),
    ("GATED", 1),
    ("QUANTISED", 0),
    ("DENSE", 1),
    ("BIASES", 0),
    ("LAYER_NORM", 0),
    ("UNIT_OFFSET", 0),
    ("PRE", 1),
    ("POST", 0),
    ("PARALLEL", 0),
    ("QK_NORM", 0),
    ("CAPS", 0),
    ("VARIED", 0),
    ("SCALED", 0),
    ("PAGE", 0),
    ("SPLITS", 4),
    ("SPLIT_BYTES", 65_536),
    ("RING", 1),
    ("RING_SLOTS", 8),
    ("SLOT", 11_264),
    ("IN_FLIGHT", 4),
    ("NVIDIA_CC", 90),
];

type Defines = [(&'static str, usize)];

/// Formats of Q4_0 files.
const Q4_0: &[&str] = &["Q4_0"];
const Q4_K_M: &[&str] = &["Q4_K", "Q6_K"];

/// Writes the ring kernel's source for models that differ in their compiled code, for `tools/ptx_check.sh`.
#[test]
#[ignore = "writes files for a tool"]
fn texts_for_the_assembler() {
    let folder = std::env::temp_dir().join("netcl-texts");
    std::fs::create_dir_all(&folder).unwrap();
    let sizes = |[dim, heads, kv_heads, head, hidden, vocab, layers]: [usize; 7]| {
        let names = ["DIM", "HEADS", "KV_HEADS", "HEAD", "HIDDEN", "VOCAB", "LAYERS"];
        names.into_iter().zip([dim, heads, kv_heads, head, hidden, vocab, layers])
    };
    let llama = [4096, 32, 8, 128, 14336, 128_256, 32];
    let gpt = [384, 6, 6, 64, 1536, 65, 6];
    let gemma = [2304, 8, 4, 256, 9216, 256_000, 26];
    let layered = &[
        ("DTYPE", 0),
        ("HALF", 0),
        ("EMBEDDED", 2),
        ("ACT", 1),
        ("GATED", 0),
        ("BIASES", 15),
        ("LAYER_NORM", 1),
    ];
    let capped = &[("ACT", 1), ("POST", 1), ("CAPS", 3), ("VARIED", 1), ("UNIT_OFFSET", 1)];
    let all: [(&str, [usize; 7], &[&str], &Defines); 9] = [
        ("llama_f16", llama, &[], &[]),
        ("llama_q4_0", llama, Q4_0, &[("EMBEDDED", 0)]),
        ("llama_q4_k_m", llama, Q4_K_M, &[("EMBEDDED", 0), ("QK_NORM", 1)]),
        ("llama_q4_0_pages", llama, Q4_0, &[("EMBEDDED", 0), ("PAGE", 16)]),
        ("2_llama_q4_0_pages", llama, Q4_0, &[("TEXTS", 2), ("EMBEDDED", 0), ("PAGE", 16)]),
        ("4_llama_q4_0_pages", llama, Q4_0, &[("TEXTS", 4), ("EMBEDDED", 0), ("PAGE", 16)]),
        ("4_llama_q4_k_m", llama, Q4_K_M, &[("TEXTS", 4), ("EMBEDDED", 0)]),
        ("gpt_f32", gpt, &[], layered),
        ("gemma_f16", gemma, &[], capped),
    ];
    for (name, shape, formats, other) in all {
        let mut defines: std::collections::BTreeMap<&'static str, usize> =
            USUAL.into_iter().chain(sizes(shape)).collect();
        defines.extend(other.iter().copied());
        defines.extend([
            ("QUANTISED", usize::from(!formats.is_empty())),
            ("DENSE", usize::from(formats.is_empty())),
        ]);
        let numbers: Vec<u32> = formats.iter().map(|name| Format::named(name).unwrap().number).collect();
        let list = (FORMAT_LIST, list_of(|number| numbers.contains(&number)));
        let defines: Vec<(&'static str, netcl_kernel::Value)> =
            defines.into_iter().map(|(name, v)| (name, v.into())).chain([list]).collect();
        let text = format!("// items decode_step=544\n{}", WeightPath::Ring.kernel(1).text(&defines));
        std::fs::write(folder.join(format!("decode_step_{name}.cl")), text).unwrap();
    }
}
