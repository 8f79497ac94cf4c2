//! `netcl kernels --dump`: the source of every kernel that the suite builds, to compile for devices that are not available here.

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
    /// Folder for the sources, one file per variant
    #[arg(long, value_name = "DIR")]
    dump: PathBuf,
    /// Device profile to assume (repeatable); `nvidia` adds variants with inline PTX
    #[arg(long, value_enum, default_values_t = [Profile::Cpu, Profile::Gpu])]
    profile: Vec<Profile>,
    /// Maximum number of sources per kernel; sources of element-wise kernels differ only in the expression
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
        // Values of current devices of this kind, so that variants beyond the minimum are included.
        capabilities.local_mem = 64 << 10;
        // One unit, so that every product of `large_products` is large enough for the largest tiles.
        capabilities.compute_units = 1;
        capabilities.max_group = 1024;
        capabilities.global_mem = 64 << 30;
        capabilities.max_alloc = 16 << 30;
        if self == Self::Nvidia {
            capabilities.architecture = Architecture::Nvidia { sm: 90 };
            capabilities.local_mem = 227 << 10;
        }
        // No cache: nothing may be stored for a device that is not available.
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
        // Evenly spaced, so that every dtype and layout is included.
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

/// Collects the sources of everything that the suite builds for every op, with every variant.
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
                // Parameters change sizes, and variants change the source; only the default is built in all storage types.
                let outcome = cases.iter().filter(|case| case.dtype == DType::F32).try_for_each(launched);
                tuning.try_out(kernel, bucket, None);
                outcome?;
            }
        }
    }
    large_products(device)?;
    Ok(programs.stop_recording())
}

/// Adds products that are large enough for the largest tiles; the suite's are too small.
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
