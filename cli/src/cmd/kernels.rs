//! `netcl kernels --dump`: the source of every kernel that the suite would build, for compilers of devices that are not here.

use crate::context::Context;
use crate::out;
use netcl::device::null::NullDriver;
use netcl::device::{Architecture, Capabilities, DeviceKind, counted};
use netcl::kernel::tune::Tuning;
use netcl::kernel::{Order, Programs};
use netcl::prelude::*;
use netcl::tensor::ops::OPS;
use netcl::tensor::suite::{Case, Depth};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Write the source of every kernel variant, without a device
#[derive(clap::Args)]
pub struct Args {
    /// Folder for the sources, one file a variant
    #[arg(long, value_name = "DIR")]
    dump: PathBuf,
    /// Stand for this kind of device (repeatable); `nvidia` adds variants with inline PTX
    #[arg(long, value_enum, default_values_t = [Profile::Cpu, Profile::Gpu])]
    profile: Vec<Profile>,
    /// Sources of one kernel at most; element-wise kernels differ in little but their expression
    #[arg(long, default_value_t = 24)]
    limit: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Profile {
    Cpu,
    Gpu,
    Nvidia,
}

impl Profile {
    fn device(self) -> Device {
        let kind = if self == Self::Cpu { DeviceKind::Cpu } else { DeviceKind::Gpu };
        let mut capabilities = Capabilities::floor(&format!("{self:?}:0").to_lowercase(), kind);
        // What current devices of the kind have: variants that ask for more than the floor are to be seen.
        capabilities.local_mem = 64 << 10;
        // One, so that no product of `large_products` is too small for the largest tiles.
        capabilities.compute_units = 1;
        capabilities.max_group = 1024;
        capabilities.global_mem = 64 << 30;
        capabilities.max_alloc = 16 << 30;
        if self == Self::Nvidia {
            capabilities.architecture = Architecture::Nvidia { sm: 90 };
            capabilities.local_mem = 227 << 10;
        }
        // No cache: nothing of a device that is not here may be found later.
        let settings = Settings { no_binary_cache: true, trust_kernels: true, ..Settings::default() };
        Device::from_driver(Box::new(NullDriver::new(capabilities)), settings)
    }
}

pub fn run(args: &Args, _: &Context) -> Result<()> {
    std::fs::create_dir_all(&args.dump).map_err(|e| Error::io("creating", &args.dump, &e))?;
    let mut sources: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for profile in &args.profile {
        for Order { kernel, source, .. } in collect(&profile.device())? {
            sources.entry(kernel).or_default().insert(source);
        }
    }
    let mut files = 0;
    for (kernel, texts) in &sources {
        // Evenly over all of them, so that every dtype and layout has its share.
        let step = texts.len().div_ceil(args.limit.max(1)).max(1);
        for (i, text) in texts.iter().step_by(step).enumerate() {
            let name = if texts.len() == 1 { format!("{kernel}.cl") } else { format!("{kernel}.{i:02}.cl") };
            write(&args.dump.join(name), text)?;
            files += 1;
        }
    }
    let all: usize = sources.values().map(BTreeSet::len).sum();
    out::result(&format!(
        "{files} of {} of {} in {}",
        counted(all, "source"),
        counted(sources.len(), "kernel"),
        args.dump.display()
    ))
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|e| Error::io("writing", path, &e))
}

/// Sources of everything that the suite of every op would build, with every variant in turn.
fn collect(device: &Device) -> Result<Vec<Order>> {
    let programs = Programs::of(device);
    programs.start_recording();
    for op in OPS {
        let tuning = Tuning::of(device);
        let launched = |case: &Case| case.check(device, Depth::Launches);
        tuning.start_recording();
        let cases = DType::FLOATS.iter().map(|dtype| op.cases(*dtype)).collect::<Result<Vec<_>>>()?;
        let cases: Vec<Case> = cases.into_iter().flatten().collect();
        cases.iter().try_for_each(launched)?;
        for (kernel, bucket) in tuning.stop_recording().tuned {
            for params in tuning.candidates(kernel).into_iter().skip(1) {
                tuning.try_out(kernel, bucket, Some(params));
                // Parameters change sizes, variants the text: all storage types only for the default.
                let outcome = cases.iter().filter(|case| case.dtype == DType::F32).try_for_each(launched);
                tuning.try_out(kernel, bucket, None);
                outcome?;
            }
        }
    }
    large_products(device)?;
    Ok(programs.stop_recording())
}

/// The suite's products are too small for the largest tiles.
fn large_products(device: &Device) -> Result<()> {
    for dtype in DType::FLOATS {
        let x = Tensor::zeros(device, [256, 256], dtype)?;
        let transposed = x.transpose(0, 1)?;
        for (a, b) in [(&x, &x), (&x, &transposed), (&transposed, &x)] {
            a.matmul(b)?;
        }
    }
    Ok(())
}
