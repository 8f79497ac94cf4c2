use super::check::{Choose, MIXES, Net, Small};
use super::*;
use crate::quant::{Blocks, Format};
use crate::random::Generator;
use crate::suite::test_device;
use netcl_device::Settings;

/// Blocks in planes, from which the file's bytes and the elements come back.
fn planes(device: &Device, format: &'static Format, dims: [usize; 2], bytes: &[u8]) -> Result<Blocks> {
    let blocks = Blocks::of_planes(device, format, dims, bytes)?;
    assert_eq!(blocks.to_bytes()?, bytes, "{format}");
    let (dense, exact) = (blocks.dense(DType::F32)?.to_vec()?, format.dequantised(bytes, dims[0] * dims[1])?);
    assert!(dense.iter().zip(&exact).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs() + 1e-9), "{format}");
    Ok(blocks)
}

/// The largest error of the logits of several tokens, relative to their root mean square; `biased`: with biases and norms of heads.
fn error(device: &Device, dtype: DType, choose: Choose, biased: bool) -> f64 {
    let (device, text, from) = (device.clone(), Text::Direct, Generator::new(7));
    let mut net = Net { device, text, dtype, from, choose, make: planes, biased };
    let mut small = net.small().unwrap();
    let worst = (0..5).map(|t| small.error(&net.token().unwrap(), t).unwrap()).fold(0.0, f64::max);
    agreement(&small, &net.token().unwrap());
    worst
}

/// What a step agrees with behind five tokens: with what it made, not with other logits, nor when one head's keys lie one position later.
fn agreement(small: &Small, x: &Tensor) {
    let position = Tensor::from_u32(x.device(), [1], &[5]).unwrap();
    let (step, run) = (&small.step, |position: usize| small.run(x, position).unwrap());
    let right = run(5);
    assert!(step.agrees(x, &position, 5, &right));
    assert!(!step.agrees(x, &position, 5, &right.mul_scalar(1.5).unwrap()));
    assert!(run(8).to_vec().unwrap().iter().all(|v| v.is_nan()), "no room");
    run(5);
    let cache = step.caches[0].slice(1, 0..5).unwrap();
    let keys = cache.slice(2, 0..1).unwrap();
    let mut values = keys.to_vec().unwrap();
    values.rotate_right(keys.dims()[3]);
    let moved = Tensor::from_f32(x.device(), keys.dims(), &values, keys.dtype()).unwrap();
    cache.write_slice(2, 0, &moved).unwrap();
    assert!(!step.agrees(x, &position, 5, &right), "keys of other positions");
}

/// The test device, or where it does not run the text a simulated one that does.
fn device() -> Device {
    let device = test_device().unwrap();
    if Text::Direct.runs_on(&device) {
        device
    } else {
        Device::open("sim:rx7900xtx", &Settings::from_env()).unwrap()
    }
}

#[test]
fn dense_models() {
    let device = device();
    for (dtype, bound) in [(DType::F32, 1e-5), (DType::F16, 2e-3), (DType::Bf16, 6e-3)] {
        let off = error(&device, dtype, |_, _| None, dtype == DType::F16);
        assert!(off < bound, "{dtype}: {off}");
    }
}

#[test]
fn quantised_models() {
    let device = device();
    for (i, choose) in MIXES.into_iter().enumerate() {
        let off = error(&device, DType::F16, choose, i % 2 == 0);
        // Activations of 8 bits: half a step of 1/127 of a group's largest, about 0.7 % of a normal value, in each of two layers' maps.
        assert!(off < 3e-2, "{i}: {off}");
    }
}

#[test]
fn the_check_of_a_device_runs_models() {
    assert_eq!(check::check(&device()).unwrap(), 3);
    let teaching = Device::open("sim:teaching", &Settings::default()).unwrap();
    assert_eq!(check::check(&teaching).unwrap(), 0, "no sub-groups");
}
