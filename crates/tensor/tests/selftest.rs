//! The self-test finds a variant with wrong results and puts it in quarantine. A later run reports and avoids it.
#![allow(clippy::unwrap_used)] // helpers of tests

use netcl_kernel::tune::{Params, Tuning};
use netcl_kernel::{Kernel, Variants};
use netcl_tensor::ops::OpEntry;
use netcl_tensor::suite::{BenchCase, Case, CasesFn, Reach, SelfTest};
use netcl_tensor::{DType, Device, Error, Result, Settings, Tensor};

// Off by one, but only if there is more than one element, so that a single value does not show the defect.
static WRONG: Kernel = Kernel::new(
    "triple_wrong",
    "__kernel void triple(__global const float *x, __global float *y) { size_t i = get_global_id(0); y[i] = 3 * x[i] + (i > 0); }",
);
static RIGHT: Kernel = Kernel::new(
    "triple_right",
    "__kernel void triple(__global const float *x, __global float *y) { size_t i = get_global_id(0); y[i] = 3 * x[i]; }",
);
static TRIPLE: Variants = Variants::new("triple", &[&WRONG, &RIGHT]);

// This kernel is wrong only with its first parameters.
static SCALE: Kernel = Kernel::new(
    "scale",
    "__kernel void scale(__global const float *x, __global float *y) { size_t i = get_global_id(0); y[i] = (STEP == 1 ? 4 : 3) * x[i]; }",
)
.tune(&[("STEP", &[1, 2, 4])]);
// This kernel is wrong, without a substitute.
static LOST: Kernel = Kernel::new(
    "lost",
    "__kernel void lost(__global const float *x, __global float *y) { y[get_global_id(0)] = 0; }",
);

fn check(device: &Device, launch: impl Fn(&Tensor, &Tensor) -> Result<()>) -> Result<()> {
    let x = Tensor::from_f32(device, [4], &[1.0, 2.0, 3.0, 4.0], DType::F32)?;
    let y = Tensor::empty(device, [4], DType::F32)?;
    launch(&x, &y)?;
    let got = y.to_vec()?;
    if got == [3.0, 6.0, 9.0, 12.0] { Ok(()) } else { Err(Error::internal(format!("got {got:?}"))) }
}
fn triple(device: &Device) -> Result<()> {
    let kernel = TRIPLE.choose(device, 0)?;
    check(device, |x, y| kernel.launch("triple").items(4).read(x).write(y).run())
}
fn scale(device: &Device) -> Result<()> {
    check(device, |x, y| SCALE.launch("scale").items(4).read(x).write(y).run())
}
fn lost(device: &Device) -> Result<()> {
    check(device, |x, y| LOST.launch("lost").items(4).read(x).write(y).run())
}
fn no_bench(
    _: &Device,
    _: DType,
    _: &dyn Fn(&str) -> bool,
    _: &mut dyn FnMut(BenchCase<'_>) -> Result<()>,
) -> Result<()> {
    Ok(())
}
fn entry(name: &'static str, make: CasesFn) -> OpEntry {
    OpEntry { name, make, sample: None, bench: no_bench, calls: Vec::new }
}

fn open(settings: &Settings) -> Device {
    Device::open(&std::env::var("NETCL_TEST_DEVICE").unwrap_or("auto".into()), settings).unwrap()
}

#[test]
fn what_fails_is_found_kept_and_avoided_later() {
    let folder = tempfile::tempdir().unwrap();
    let cache_dir = Some(folder.path().into());
    let settings = Settings { cache_dir, quarantine_dir: None, ..Settings::from_env() };
    let device = open(&settings);
    let test = SelfTest::new(&device, Reach::Values);
    let run = |entry: OpEntry| test.run(&entry, &DType::FLOATS, &|| ());

    let verdict =
        run(entry("triple", |dtype| Ok(vec![Case::new("triple", dtype, |device, _| triple(device))])));
    assert_eq!(verdict.failure, None);
    let blamed: Vec<_> = verdict.suspects.iter().map(|s| (s.kernel.as_str(), &s.params)).collect();
    assert_eq!(blamed, [("triple_wrong", &None)]);
    assert!(verdict.suspects[0].why.contains("triple: got [3.0, 7.0, 10.0, 13.0]"), "{:?}", verdict.suspects);

    let verdict = run(entry("scale", |dtype| Ok(vec![Case::new("scale", dtype, |device, _| scale(device))])));
    assert_eq!((verdict.failure, verdict.suspects.len()), (None, 1));
    assert_eq!(verdict.suspects[0].params, Some(Params::from([("STEP".into(), 1)])));

    let verdict = run(entry("lost", |dtype| Ok(vec![Case::new("lost", dtype, |device, _| lost(device))])));
    assert!(verdict.suspects.is_empty() && verdict.failure.unwrap().contains("got [0.0"));
    test.finish().unwrap();

    // A later run, as in another process, avoids both.
    let later = open(&settings);
    assert_eq!(Tuning::of(&later).quarantine().suspects().len(), 2);
    assert_eq!(TRIPLE.choose(&later, 0).unwrap().name, "triple_right");
    triple(&later).and_then(|()| scale(&later)).unwrap();
}
