//! The available simulated devices.

use crate::{Architecture, Capabilities, DeviceKind, Error, Result, did_you_mean};
use aethercl::model::Profile;
use std::path::PathBuf;

/// Returns the profiles that `sim:<name>` accepts; `sim` means the first one.
pub fn profiles() -> Vec<Capabilities> {
    Profile::names()
        .filter_map(|name| Profile::named(name).ok())
        .map(|profile| describe(&profile, profile.memory.bytes))
        .collect()
}

/// Returns the profile of a device name: `sim`, `sim:<profile>`, `sim:<file>.toml`.
pub(super) fn profile(name: &str) -> Result<Profile> {
    let wanted = name.strip_prefix("sim:").unwrap_or("");
    if wanted.is_empty() {
        let first = Profile::names().next().unwrap_or_default();
        return Profile::named(first).map_err(|e| Error::internal(e.to_string()));
    }
    if wanted.ends_with(".toml") {
        let path = PathBuf::from(wanted);
        let text = crate::files::read_text(&path).map_err(|e| Error::io("reading", &path, &e))?;
        return Profile::parse(&text).map_err(|e| Error::format(format!("{wanted}: {e}")));
    }
    Profile::named(wanted)
        .map_err(|e| Error::device(format!("device {name}: {e}{}", did_you_mean(wanted, Profile::names()))))
}

pub(super) fn describe(profile: &Profile, memory: u64) -> Capabilities {
    let c = &profile.compute;
    let mut extensions: Vec<String> = [
        "cl_khr_byte_addressable_store",
        "cl_khr_global_int32_base_atomics",
        "cl_khr_global_int32_extended_atomics",
        "cl_khr_local_int32_base_atomics",
        "cl_khr_local_int32_extended_atomics",
    ]
    .map(String::from)
    .to_vec();
    let optional = [(c.fp64, "cl_khr_fp64"), (c.fp16, "cl_khr_fp16"), (c.subgroups, "cl_khr_subgroups")];
    extensions.extend(optional.iter().filter(|(has, _)| *has).map(|(_, name)| (*name).to_owned()));
    extensions.sort();
    Capabilities {
        id: format!("sim:{}", profile.name),
        name: profile.title.clone(),
        vendor: profile.vendor.clone(),
        platform: "AetherCL".into(),
        platform_version: format!("OpenCL 1.2 AetherCL {}", env!("CARGO_PKG_VERSION")),
        driver_version: env!("CARGO_PKG_VERSION").into(),
        version: "OpenCL 1.2 AetherCL".into(),
        c_version: "OpenCL C 1.2 AetherCL".into(),
        kind: DeviceKind::Gpu,
        compute_units: c.units,
        clock_mhz: c.clock_mhz,
        max_group: c.max_group as usize,
        local_mem: profile.local.group_bytes,
        global_mem: memory,
        cache: profile.cache.l2_bytes,
        max_alloc: memory / 4,
        base_align: 128,
        float_lanes: 1,
        simulated: true,
        fp64: c.fp64,
        fp16: c.fp16,
        subgroups: c.subgroups,
        unified_memory: profile.link.unified,
        // The simulated device executes OpenCL C, whichever card its figures come from.
        architecture: Architecture::Unknown,
        extensions,
    }
}
