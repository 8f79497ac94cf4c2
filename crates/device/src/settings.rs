//! Settings read once at the edge. Libraries never look at the environment themselves.

use crate::{Error, Result};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Everything the environment decides. `docs/env-vars.md` lists the variables.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// `NETCL_OPENCL_LIBRARY`: the OpenCL library to load instead of searching for one.
    pub opencl_library: Option<PathBuf>,
    /// `OCL_ICD_VENDORS`: folder of `.icd` files, one such file, or a library, for when there is no ICD loader.
    pub icd_vendors: Option<PathBuf>,
    /// `NETCL_NO_LOADER`: skip the system's ICD loader and load the vendors' libraries directly.
    pub no_loader: bool,
    /// `NETCL_CACHE_DIR`, else `$XDG_CACHE_HOME/netcl`, else `~/.cache/netcl`. `None` keeps nothing on disk.
    pub cache_dir: Option<PathBuf>,
    /// `NETCL_QUARANTINE_DIR`: where variants to avoid are kept instead of in the cache, if there is one; tests have a folder of their own.
    pub quarantine_dir: Option<PathBuf>,
    /// `NETCL_DISABLE`: kernel variants never to use, by name.
    pub disable: Vec<String>,
    /// `NETCL_PREFER`: kernel variants to use wherever they can be, by name.
    pub prefer: Vec<String>,
    /// `NETCL_TRUST_KERNELS`: variants made for one architecture are used without the test before their first use.
    pub trust_kernels: bool,
    /// What the device computes means nothing, as on a [null driver](crate::null): a self-test launches its kernels and counts as passed.
    pub no_results: bool,
    /// How to start processes that build kernels for this one. `NETCL_BUILDER` names a program `netcl` for programs that cannot start
    /// themselves so, such as those in C.
    pub builders: Option<Builders>,
    /// `NETCL_TRUST_DRIVER`: kernels are built in this process even on a driver that has not passed a self-test.
    pub trust_driver: bool,
    /// `NETCL_BUILD_OPTIONS`: options of every build of kernels, after those of netcl itself.
    pub build_options: String,
    /// `NETCL_NO_CACHE`: neither read nor write compiled kernels.
    pub no_binary_cache: bool,
    /// `NETCL_EXACT_MEMORY`: every buffer gets a driver allocation of its own, of exactly its size, freed with it. For memory
    /// checkers: in a pool an access past the end lands in a neighbour.
    pub exact_memory: bool,
    /// `NETCL_EXACT_MEMORY=keep`: what is freed stays allocated and is never handed out again, for checkers that take a new
    /// allocation at an old place for written.
    pub keep_memory: bool,
    /// `NETCL_FUSE=0`: captured graphs make no trees of ops by themselves.
    pub no_fuse: bool,
    /// `NETCL_DEBUG`: what is shown or checked besides, by name ([`Debug`](crate::Debug)). `fuse`: the trees of lazy scopes and their kernels, in
    /// the log.
    pub debug: Vec<String>,
    /// `NETCL_LAST_CACHE`: bytes of a processor's last cache instead of what the driver says. Results larger than half of it
    /// are stored past the caches; 0 stores none so.
    pub last_cache: Option<u64>,
    /// What products of f32 may be rounded to; `--matmul-precision` of the program.
    pub matmul_precision: MatmulPrecision,
    /// How the simulated GPU is opened.
    pub sim: SimSettings,
}

/// Processes that build kernels: many drivers build one program at a time in a process, however many threads ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Builders {
    /// The program.
    pub program: PathBuf,
    /// Its arguments; the device's id follows. It then serves orders from stdin, as `netcl_kernel::ahead::serve` does.
    pub arguments: Vec<std::ffi::OsString>,
    /// Processes at most.
    pub most: usize,
}

impl Builders {
    /// Processes at most: each takes memory of the host and of the device.
    const MOST: usize = 12;

    /// The program `netcl` at this path.
    pub fn program(program: PathBuf) -> Self {
        Self::new(program, vec!["build-kernels".into(), "--device".into()])
    }

    /// A program with its arguments: as many processes as this machine has cores, at most 12.
    pub fn new(program: PathBuf, arguments: Vec<std::ffi::OsString>) -> Self {
        let most = std::thread::available_parallelism().map_or(1, usize::from).min(Self::MOST);
        Self { program, arguments, most }
    }

    /// Starts a process for the device of this id. That process builds by itself.
    pub fn command(&self, device: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).arg(device).env_remove("NETCL_BUILDER");
        command
    }
}

/// What a device may round the operands of f32 products to. Sums are f32 either way; f16 and bf16 are not concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MatmulPrecision {
    /// Nothing: 24 bits of mantissa.
    #[default]
    Highest,
    /// tf32, 11 bits of mantissa, where tensor cores take it: several times as fast.
    High,
}

impl MatmulPrecision {
    /// All of them, by name.
    pub const NAMES: [(&str, Self); 2] = [("highest", Self::Highest), ("high", Self::High)];
}

impl std::str::FromStr for MatmulPrecision {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        match Self::NAMES.iter().find(|(known, _)| *known == name) {
            Some((_, value)) => Ok(*value),
            None => Err(Error::format(format!(
                "--matmul-precision {name} is unknown; it is one of highest, high{}",
                crate::did_you_mean(name, ["highest", "high"])
            ))),
        }
    }
}

impl std::fmt::Display for MatmulPrecision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Self::High { "high" } else { "highest" })
    }
}

/// What the environment says of the simulated GPU.
#[derive(Clone, Debug, Default)]
pub struct SimSettings {
    /// `NETCL_SIM_CHECK`: checks that every launch gets, by name; `all`; empty for none.
    pub check: Vec<String>,
    /// `NETCL_SIM_TRACE`: where the timeline goes when the device is closed.
    pub trace: Option<PathBuf>,
    /// `NETCL_SIM_TRACE_LEVEL`: what is told in words of each command: `off`, `commands`, `steps`, `all`.
    pub trace_level: String,
    /// `NETCL_SIM_MEMORY`: bytes of its memory, where they are to be fewer than the profile's.
    pub memory: Option<u64>,
    /// `NETCL_SIM_SAMPLE`: run so many groups of each launch instead of all and scale up what they did: times of large
    /// launches, without their results.
    pub sample: Option<u64>,
    /// `NETCL_SIM_TIMEOUT`: seconds that a work-group may take before it counts as hanging; `Some(None)`, written 0, for as
    /// long as it takes.
    pub timeout: Option<Option<Duration>>,
}

/// A limit in seconds; 0 is none. What is no number sets nothing.
fn seconds(text: &str) -> Option<Option<Duration>> {
    let limit = Duration::try_from_secs_f64(text.trim().parse().ok()?).ok()?;
    Some((!limit.is_zero()).then_some(limit))
}

impl Settings {
    /// From the process environment.
    pub fn from_env() -> Self {
        let path = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let flag = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty() && v != "0");
        let cache_dir = path("NETCL_CACHE_DIR")
            .or_else(|| path("XDG_CACHE_HOME").map(|p| p.join("netcl")))
            .or_else(|| path("HOME").map(|p| p.join(".cache/netcl")));
        // A cache that is named has all that is kept.
        let quarantine_dir = match path("NETCL_CACHE_DIR") {
            Some(_) => None,
            None => path("NETCL_QUARANTINE_DIR"),
        };
        let words = |name: &str| -> Vec<String> {
            let text = std::env::var(name).unwrap_or_default();
            text.split([',', ' ']).filter(|s| !s.is_empty()).map(Into::into).collect()
        };
        Self {
            opencl_library: path("NETCL_OPENCL_LIBRARY"),
            icd_vendors: path("OCL_ICD_VENDORS"),
            no_loader: flag("NETCL_NO_LOADER"),
            cache_dir,
            quarantine_dir,
            no_fuse: std::env::var_os("NETCL_FUSE").is_some_and(|v| v == "0"),
            debug: words("NETCL_DEBUG"),
            disable: words("NETCL_DISABLE"),
            prefer: words("NETCL_PREFER"),
            trust_kernels: flag("NETCL_TRUST_KERNELS"),
            no_results: false,
            builders: path("NETCL_BUILDER").map(Builders::program),
            trust_driver: flag("NETCL_TRUST_DRIVER"),
            build_options: std::env::var("NETCL_BUILD_OPTIONS").unwrap_or_default(),
            no_binary_cache: flag("NETCL_NO_CACHE"),
            exact_memory: flag("NETCL_EXACT_MEMORY"),
            keep_memory: std::env::var_os("NETCL_EXACT_MEMORY").is_some_and(|v| v == "keep"),
            last_cache: std::env::var("NETCL_LAST_CACHE").ok().and_then(|v| v.trim().parse().ok()),
            sim: SimSettings {
                check: words("NETCL_SIM_CHECK"),
                trace: path("NETCL_SIM_TRACE"),
                trace_level: std::env::var("NETCL_SIM_TRACE_LEVEL").unwrap_or_default(),
                memory: std::env::var("NETCL_SIM_MEMORY").ok().and_then(|v| v.parse().ok()),
                sample: std::env::var("NETCL_SIM_SAMPLE").ok().and_then(|v| v.parse().ok()),
                timeout: std::env::var("NETCL_SIM_TIMEOUT").ok().and_then(|v| seconds(&v)),
            },
            matmul_precision: MatmulPrecision::default(),
        }
    }
}
