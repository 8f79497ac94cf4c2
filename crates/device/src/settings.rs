//! Settings that the program reads once at startup. Libraries never read the environment.

use crate::{Error, Result};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// All settings from the environment. `docs/env-vars.md` lists the variables.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// `NETCL_OPENCL_LIBRARY`: the OpenCL library to load instead of searching for one.
    pub opencl_library: Option<PathBuf>,
    /// `OCL_ICD_VENDORS`: folder of `.icd` files, one `.icd` file, or a library. Used without an ICD loader.
    pub icd_vendors: Option<PathBuf>,
    /// `NETCL_NO_LOADER`: skips the system's ICD loader and loads the vendor libraries directly.
    pub no_loader: bool,
    /// `NETCL_CACHE_DIR`, or `$XDG_CACHE_HOME/netcl`, or `~/.cache/netcl`. `None` keeps nothing on disk.
    pub cache_dir: Option<PathBuf>,
    /// `NETCL_QUARANTINE_DIR`: folder of the list of variants to avoid, instead of the cache. Tests use separate folders.
    pub quarantine_dir: Option<PathBuf>,
    /// `NETCL_DISABLE`: names of kernel variants to never use.
    pub disable: Vec<String>,
    /// `NETCL_PREFER`: names of kernel variants to use wherever possible.
    pub prefer: Vec<String>,
    /// `NETCL_TRUST_KERNELS`: uses architecture-specific variants without testing them before their first use.
    pub trust_kernels: bool,
    /// Set if device results are meaningless, as on a [null driver](crate::null). A self-test then launches its kernels and always passes.
    pub no_results: bool,
    /// How to start processes that build kernels for this one. `NETCL_BUILDER` names a `netcl` program, for programs that cannot start themselves
    /// this way, such as C programs.
    pub builders: Option<Builders>,
    /// `NETCL_TRUST_DRIVER`: builds kernels in this process even if the driver has not passed a self-test.
    pub trust_driver: bool,
    /// `NETCL_BUILD_OPTIONS`: options added to every kernel build, after netcl's own options.
    pub build_options: String,
    /// `NETCL_QUICK_BUILDS`: a processor's compiler optimizes only the kernels that take most of the time of a step. For short runs, such as tests. Build
    /// options of the user disable it.
    pub quick_builds: bool,
    /// `NETCL_NO_CACHE`: disables reading and writing compiled kernels.
    pub no_binary_cache: bool,
    /// `NETCL_EXACT_MEMORY`: every buffer is a separate driver allocation of exactly its size, freed with the buffer. For memory checkers: in a pool,
    /// an access past the end reaches a neighboring block.
    pub exact_memory: bool,
    /// `NETCL_EXACT_MEMORY=keep`: freed memory stays allocated and is never reused. For checkers that treat a new allocation at an old address as
    /// initialized.
    pub keep_memory: bool,
    /// `NETCL_MEMORY`: bytes of device memory to use at most, such as `8G`; `--memory` of `netcl train` overrides it.
    pub memory_limit: Option<u64>,
    /// `NETCL_FUSE=0`: captured graphs do not fuse ops into trees automatically.
    pub no_fuse: bool,
    /// `NETCL_DEBUG`: additional output or checks, by name ([`Debug`](crate::Debug)). `fuse` logs the trees of lazy scopes and their kernels.
    pub debug: Vec<String>,
    /// `NETCL_LAST_CACHE`: bytes of a processor's last-level cache, overriding the driver. Results larger than half of it are stored with
    /// non-temporal stores; 0 disables this.
    pub last_cache: Option<u64>,
    /// Permitted rounding of f32 products; `--matmul-precision` on the command line.
    pub matmul_precision: MatmulPrecision,
    /// Settings of the simulated GPU.
    pub sim: SimSettings,
}

/// Processes that build kernels. Many drivers build one program at a time per process, regardless of the number of threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Builders {
    /// Path of the program.
    pub program: PathBuf,
    /// Arguments; the device id follows. The program then serves requests from stdin, like `netcl_kernel::ahead::serve`.
    pub arguments: Vec<std::ffi::OsString>,
    /// Maximum number of processes.
    pub most: usize,
}

impl Builders {
    /// Upper limit of processes: each takes memory of the host and of the device.
    const MAX_PROCESSES: usize = 12;

    /// Uses the `netcl` program at this path.
    pub fn program(program: PathBuf) -> Self {
        Self::new(program, vec!["build-kernels".into(), "--device".into()])
    }

    /// Uses a program with arguments: as many processes as this machine has cores, at most 12.
    pub fn new(program: PathBuf, arguments: Vec<std::ffi::OsString>) -> Self {
        let most = std::thread::available_parallelism().map_or(1, usize::from).min(Self::MAX_PROCESSES);
        Self { program, arguments, most }
    }

    /// Starts a process for the device with this id. That process builds in-process.
    pub fn command(&self, device: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).arg(device).env_remove("NETCL_BUILDER");
        command
    }
}

/// Permitted rounding of the operands of f32 products. Sums are always f32; f16 and bf16 are not affected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MatmulPrecision {
    /// No rounding: 24 bits of mantissa.
    #[default]
    Highest,
    /// tf32, 11 bits of mantissa, if tensor cores support the product: several times faster.
    High,
}

impl MatmulPrecision {
    /// All values by name.
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

/// Environment settings of the simulated GPU.
#[derive(Clone, Debug, Default)]
pub struct SimSettings {
    /// `NETCL_SIM_CHECK`: names of the checks for every launch; `all`; empty for none.
    pub check: Vec<String>,
    /// `NETCL_SIM_TRACE`: path of the timeline that is written when the device is closed.
    pub trace: Option<PathBuf>,
    /// `NETCL_SIM_TRACE_LEVEL`: the commands to log as text: `off`, `commands`, `steps`, `all`.
    pub trace_level: String,
    /// `NETCL_SIM_MEMORY`: bytes of simulated memory, to set fewer than the profile has.
    pub memory: Option<u64>,
    /// `NETCL_SIM_SAMPLE`: runs this many groups of each launch instead of all and scales up their counts. Gives times of large launches without
    /// their results.
    pub sample: Option<u64>,
    /// `NETCL_SIM_TIMEOUT`: seconds before a work-group counts as hanging. `Some(None)`, written 0, disables the timeout.
    pub timeout: Option<Option<Duration>>,
}

/// Parses a limit in seconds; 0 disables it. Text that is not a number leaves the setting unset.
fn seconds(text: &str) -> Option<Option<Duration>> {
    let limit = Duration::try_from_secs_f64(text.trim().parse().ok()?).ok()?;
    Some((!limit.is_zero()).then_some(limit))
}

impl Settings {
    /// Returns the bytes of device memory for buffers: a twelfth of the limit, at most 768 MiB, is left to the driver for its own objects and for compiled
    /// kernels. NVIDIA's driver 580 takes 530 MiB.
    pub fn memory_for_buffers(&self) -> Option<u64> {
        const SHARE_OF_DRIVER: u64 = 12;
        const MOST_OF_DRIVER: u64 = 768 << 20;
        self.memory_limit.map(|limit| limit - (limit / SHARE_OF_DRIVER).min(MOST_OF_DRIVER))
    }

    /// Reads the settings from the process environment.
    pub fn from_env() -> Self {
        let path = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let flag = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty() && v != "0");
        let cache_dir = path("NETCL_CACHE_DIR")
            .or_else(|| path("XDG_CACHE_HOME").map(|p| p.join("netcl")))
            .or_else(|| path("HOME").map(|p| p.join(".cache/netcl")));
        // An explicitly named cache holds all stored data, including the quarantine list.
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
            quick_builds: flag("NETCL_QUICK_BUILDS"),
            no_binary_cache: flag("NETCL_NO_CACHE"),
            exact_memory: flag("NETCL_EXACT_MEMORY"),
            keep_memory: std::env::var_os("NETCL_EXACT_MEMORY").is_some_and(|v| v == "keep"),
            memory_limit: std::env::var("NETCL_MEMORY").ok().and_then(|v| crate::parse_bytes(&v).ok()),
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
