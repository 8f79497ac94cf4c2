//! Runs a kernel of a file with its arguments on a simulated GPU, as the command line describes it.

use super::arg::{KernelArg, Sizes, offsets, sizes};
use super::content::{Init, content};
use super::number::Number;
use super::report::{BufferReport, Report};
use super::{fit, npy, page};
use crate::out;
use aethercl::machine::{Binding, Completion, Fence, Gpu, GpuError, KernelLaunch, MachineOptions};
use aethercl::model::Profile;
use aethercl::{
    Access, ArgInfo, ArgKind, Checks, Includes, KernelInfo, LaunchOptions, NdRange, Program, Source,
};
use netcl::device::{check_writable, counted};
use netcl::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The launch.
#[derive(clap::Args)]
pub struct LaunchArgs {
    /// OpenCL C source file
    #[arg(value_name = "FILE.cl")]
    pub file: PathBuf,
    /// Kernel; optional if the file has only one
    #[arg(long)]
    pub kernel: Option<String>,
    /// Work-items in each dimension: 1024 or 64,8
    #[arg(long, value_parser = sizes, value_name = "X[,Y[,Z]]")]
    pub global: Option<Sizes>,
    /// Work-items per group in each dimension
    #[arg(long, value_parser = sizes, value_name = "X[,Y[,Z]]")]
    local: Option<Sizes>,
    /// First global id in each dimension
    #[arg(long, value_parser = offsets, value_name = "X[,Y[,Z]]")]
    offset: Option<Sizes>,
    /// Argument, in order (repeatable): buffer:<type>:<count>[:<content>][:read], <type>:<value>, …
    ///
    /// Also local:<type>:<count>, null, image:<channels>:<type>:<width>[x<height>[x<depth>]][:<content>][:read] (rgba:unorm8:64x32), and
    /// sampler:<mode>,… (linear,repeat,normalized). Types are i8 … u64, f16, f32, f64; a vector is f32x4:1,2,3,4; a structure {i32:1,f32x4:1 2 3 4}.
    /// Content: unwritten, random, iota, zero, a value, @FILE (raw, or .npy).
    #[arg(long = "arg", value_name = "ARG", allow_hyphen_values = true)]
    pub args: Vec<KernelArg>,
    /// Macro (repeatable): NAME or NAME=VALUE
    #[arg(short = 'D', value_name = "MACRO")]
    define: Vec<String>,
    /// Folder for #include (repeatable)
    #[arg(short = 'I', value_name = "DIR")]
    include: Vec<PathBuf>,
    /// Additional build options
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    options: String,
    /// Device profile: teaching, h200, h100, rx7900xtx, arc-a770, adreno-750, mali-g720, or a TOML file
    #[arg(long, default_value = "teaching")]
    profile: String,
    /// Maximum CPU seconds of a work-group before it counts as hanging; 0: no limit
    #[arg(long, value_name = "SECONDS", value_parser = timeout, default_value = "30")]
    timeout: Timeout,
    /// Maximum instructions of a work-group before it counts as hanging
    #[arg(long, value_name = "N", default_value_t = aethercl::MAX_STEPS)]
    max_steps: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Maximum processor time of a work-group, if there is a limit.
#[derive(Clone, Copy)]
pub struct Timeout(Option<Duration>);

fn timeout(text: &str) -> std::result::Result<Timeout, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text} is not a number of seconds"))?;
    let limit = Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())?;
    Ok(Timeout((!limit.is_zero()).then_some(limit)))
}

/// Output files of a run.
#[derive(Default)]
pub struct Files<'a> {
    /// Timeline.
    pub trace: Option<&'a Path>,
    /// HTML page.
    pub html: Option<&'a Path>,
    /// Buffers, from `--out`.
    pub out: &'a [String],
}

/// A built file, and its device.
pub struct Session<'a> {
    args: &'a LaunchArgs,
    /// The built program.
    pub program: Arc<Program>,
    /// Its source and its build options, in a form that any device accepts.
    pub build: (String, String),
    gpu: Gpu,
    checks: Checks,
    /// Filled buffers: their fences and bytes.
    filled: Vec<(Fence, u64)>,
}

/// A finished launch.
pub struct Launched {
    /// The kernel.
    pub kernel: KernelInfo,
    /// Its range.
    pub range: NdRange,
    /// Its arguments.
    pub bindings: Vec<Binding>,
    /// Its outcome.
    pub done: Completion,
    queue: usize,
}

impl<'a> Session<'a> {
    /// Builds the file for a separate device.
    ///
    /// # Errors
    /// The build log; a check or a profile that does not exist.
    pub fn open(args: &'a LaunchArgs, check: &str, options: MachineOptions) -> Result<Self> {
        let checks = Checks::parse(check).map_err(|e| Error::format(format!("--check: {e}")))?;
        let profile = profile(&args.profile)?;
        let text = std::fs::read_to_string(&args.file).map_err(|e| Error::io("reading", &args.file, &e))?;
        let mut flags = args.options.clone();
        args.define.iter().for_each(|d| flags.push_str(&format!(" -D{}", quoted(d))));
        // A file's own folder is searched first for includes.
        let own = args.file.parent().filter(|p| !p.as_os_str().is_empty()).map(Path::to_owned);
        for folder in own.iter().chain(&args.include) {
            flags.push_str(&format!(" -I{}", quoted(&folder.display().to_string())));
        }
        let name = args.file.display().to_string();
        let source = Source { name: &name, text: &text };
        let program = Program::build(&source, flags.trim(), &Includes::from_disk())
            .map_err(|e| Error::build(format!("{name} does not build\n{}", e.log.trim_end())))?;
        let warnings = program.hir().warnings.trim_end();
        if !warnings.is_empty() {
            out::note(warnings);
        }
        let gpu = Gpu::new(profile, options);
        Ok(Self {
            args,
            program: Arc::new(program),
            build: (text, flags.trim().into()),
            gpu,
            checks,
            filled: Vec::new(),
        })
    }

    fn kernel(&self) -> Result<&KernelInfo> {
        let all = self.program.kernels();
        let names: Vec<&str> = all.iter().map(|k| k.name.as_str()).collect();
        match &self.args.kernel {
            Some(name) => self
                .program
                .kernel(name)
                .ok_or_else(|| Error::format(format!("no kernel {name}; the file has {}", names.join(", ")))),
            None if all.len() == 1 => Ok(&all[0]),
            None if all.is_empty() => {
                Err(Error::format(format!("{} contains no kernel", self.args.file.display())))
            }
            None => Err(Error::format(format!("--kernel is required: the file has {}", names.join(", ")))),
        }
    }

    /// Returns the files of `--out` with the argument for each.
    fn files<'o>(&self, kernel: &KernelInfo, out: &'o [String]) -> Result<Vec<(usize, &'o Path)>> {
        let buffers: Vec<(usize, bool)> = self.args.args.iter().enumerate().filter_map(buffer_of).collect();
        let named = |name: &str| kernel.args.iter().position(|a| a.name == name);
        let mut files = Vec::new();
        for text in out {
            let (index, path) = match text.split_once('=').and_then(|(n, path)| Some((named(n)?, path))) {
                Some((index, path)) if buffers.iter().any(|(i, _)| *i == index) => (index, path),
                Some((index, _)) => {
                    let name = &kernel.args[index].name;
                    return Err(Error::format(format!("--out {text}: {name} is not a buffer")));
                }
                None => {
                    let written: Vec<usize> = buffers.iter().filter(|b| !b.1).map(|b| b.0).collect();
                    let [one] = written[..] else {
                        return Err(Error::format(format!(
                            "--out {text}: the kernel may write {}; name one with --out NAME=FILE",
                            counted(written.len(), "buffer")
                        )));
                    };
                    (one, text.as_str())
                }
            };
            check_writable(Path::new(path))?;
            files.push((index, Path::new(path)));
        }
        Ok(files)
    }

    /// Uploads buffers and runs the kernel; with `sample`, only that many of its groups.
    ///
    /// # Errors
    /// Arguments that do not fit. A failure within the launch is in its outcome.
    pub fn launch(&mut self, sample: Option<u64>, lines: bool) -> Result<Launched> {
        let kernel = self.kernel()?.clone();
        let range = self.range(&kernel)?;
        let failed = |e: GpuError| Error::launch(e.to_string());
        let queue = self.gpu.open_queue().map_err(failed)?;
        let bindings = self.bind(&kernel, queue)?;
        let options = LaunchOptions {
            checks: self.checks,
            threads: std::thread::available_parallelism().map_or(1, Into::into),
            sub_group: self.gpu.profile().compute.simd_width,
            max_time: self.args.timeout.0,
            max_steps: self.args.max_steps,
            lines,
            sample,
            ..LaunchOptions::default()
        };
        let work = KernelLaunch::new(&self.program, &kernel.name, bindings.clone(), range, options);
        let fence = self.gpu.launch(queue, Arc::new(work), None).map_err(failed)?;
        let done = self.gpu.wait(fence).unwrap_or_else(|why| Completion {
            queued_ns: 0,
            start_ns: 0,
            end_ns: 0,
            outcome: Err(why),
        });
        Ok(Launched { kernel, range, bindings, done, queue })
    }

    /// Uploads buffers, runs the kernel, and downloads buffers.
    ///
    /// # Errors
    /// Errors of [`Self::launch`]; files that cannot be written.
    pub fn run(mut self, show: usize, to: &Files<'_>) -> Result<Report> {
        let files = self.files(&self.kernel()?.clone(), to.out)?;
        let Launched { kernel, bindings, done, queue, .. } = self.launch(None, to.html.is_some())?;
        let failed = |e: GpuError| Error::launch(e.to_string());
        let device = self.gpu.profile().name.clone();
        let mut report = Report::new(&kernel.name, self.gpu.profile(), &done);
        self.report_fills(&mut report);
        // The buffers of a failed launch contain no results.
        let results = if done.outcome.is_ok() { bindings.as_slice() } else { &[] };
        for (i, (binding, arg)) in results.iter().zip(&self.args.args).enumerate() {
            let info = &kernel.args[i];
            let file = files.iter().find(|(index, _)| *index == i).map(|(_, path)| *path);
            let (address, bytes, access) = match binding {
                Binding::Buffer { address, bytes, access } => (*address, *bytes, *access),
                Binding::Image(image, access) => (image.address, image.bytes(), *access),
                _ => continue,
            };
            if bytes > 0 && (file.is_some() || (show > 0 && access == Access::Write)) {
                let fence = self.gpu.read(queue, address, bytes, None).map_err(failed)?;
                let read = self.gpu.wait(fence).map_err(failed)?;
                let data = read.outcome.map_err(failed)?.data;
                report.summary.transfer(&device, "read", bytes, read.end_ns.saturating_sub(read.start_ns));
                if let Some(path) = file {
                    write_buffer(path, arg, &data)?;
                }
                if show > 0 && access == Access::Write {
                    report.buffers.push(BufferReport::new(&info.name, arg, &data, show));
                }
            }
        }
        if let (Some(path), Some(journal)) = (to.html, self.gpu.journal()) {
            let title = format!("netcl sim run {}", self.args.file.display());
            page::write(path, &title, journal, &report.summary)?;
            out::note(&format!("the page is in {}", path.display()));
        }
        if let (Some(path), Some(timeline)) = (to.trace, self.gpu.timeline()) {
            std::fs::write(path, timeline.json()).map_err(|e| Error::io("writing", path, &e))?;
            out::note(&format!("timeline in {}; ui.perfetto.dev opens it", path.display()));
        }
        Ok(report)
    }

    /// Reports the transfers that filled the buffers.
    fn report_fills(&mut self, report: &mut Report) {
        let device = self.gpu.profile().name.clone();
        for (fence, bytes) in std::mem::take(&mut self.filled) {
            match self.gpu.wait(fence) {
                Ok(write) => {
                    let ns = write.end_ns.saturating_sub(write.start_ns);
                    report.summary.transfer(&device, "write", bytes, ns);
                }
                // A device that was lost in the launch reports nothing else.
                Err(GpuError::Lost) if !report.summary.failures.is_empty() => {}
                Err(why) => _ = report.summary.failed(&format!("write of {bytes} bytes: {why}")),
            }
        }
    }

    /// Returns the given sizes; the group as the kernel requires it, otherwise the largest that fits.
    fn range(&self, kernel: &KernelInfo) -> Result<NdRange> {
        let given = self.args.global.ok_or_else(|| Error::format("--global is needed to run a kernel"))?;
        let (global, dimensions) = (given.of, given.dimensions);
        for (name, other) in [("local", self.args.local), ("offset", self.args.offset)] {
            if let Some(n) = other.map(|o| o.dimensions).filter(|n| *n > dimensions) {
                return Err(Error::format(format!(
                    "--{name} has {}, but --global has {dimensions}",
                    counted(n as usize, "dimension")
                )));
            }
        }
        let local = match (self.args.local, kernel.required_group) {
            (Some(local), _) => local.of,
            (None, Some(required)) => required,
            (None, None) => [largest_divisor(global[0], 64), 1, 1],
        };
        for (axis, (g, l)) in global.iter().zip(local).enumerate() {
            if !g.is_multiple_of(l) {
                return Err(Error::format(format!(
                    "--local {l} does not divide --global {g} in dimension {axis}"
                )));
            }
        }
        let (items, most) = (local.iter().product::<u64>(), u64::from(self.gpu.profile().compute.max_group));
        if items > most {
            let name = &self.gpu.profile().name;
            return Err(Error::format(format!(
                "a group of {}; {name} allows {most}",
                counted(items, "item")
            )));
        }
        let offset = self.args.offset.map_or([0; 3], |o| o.of);
        Ok(NdRange { global, local, offset, dimensions })
    }

    fn bind(&mut self, kernel: &KernelInfo, queue: usize) -> Result<Vec<Binding>> {
        if kernel.args.len() != self.args.args.len() {
            let wanted: Vec<String> = kernel.args.iter().map(|a| format!("{} {}", a.ty, a.name)).collect();
            return Err(Error::format(format!(
                "{} for kernel {}, which takes {}: {}",
                counted(self.args.args.len(), "argument"),
                kernel.name,
                wanted.len(),
                wanted.join(", ")
            )));
        }
        let mut bindings = Vec::new();
        let program = Arc::clone(&self.program);
        let hir = program.hir();
        let id =
            hir.kernel(&kernel.name).ok_or_else(|| Error::format(format!("no kernel {}", kernel.name)))?;
        let parameters = &hir.function(id).locals;
        for (i, (arg, info)) in self.args.args.iter().zip(&kernel.args).enumerate() {
            let value = fit::check(&hir.types, parameters[i].ty, arg).map_err(|why| {
                Error::format(format!(
                    "argument {i} of kernel {} is {} {}, which the {}. --arg does not fit: {why}",
                    kernel.name,
                    info.ty,
                    info.name,
                    i + 1
                ))
            })?;
            bindings.push(self.binding(i, arg, info, queue, value)?);
        }
        Ok(bindings)
    }

    fn binding(
        &mut self,
        i: usize,
        arg: &KernelArg,
        info: &ArgInfo,
        queue: usize,
        value: Vec<u8>,
    ) -> Result<Binding> {
        let access = |read: &bool| if *read { Access::Read } else { Access::Write };
        Ok(match arg {
            KernelArg::Scalar(_) | KernelArg::Fields(_) => Binding::Scalar(value),
            KernelArg::Null => Binding::Buffer { address: 0, bytes: 0, access: Access::Read },
            KernelArg::Local(bytes) => Binding::Local(*bytes),
            KernelArg::Sampler(sampler) => Binding::Sampler(*sampler),
            KernelArg::Buffer { number, count, init, read } => {
                let address = self.filled(i, &info.name, (*number, *count, init), queue)?;
                let bytes = (count * number.size()) as u64;
                Binding::Buffer { address, bytes, access: access(read) }
            }
            KernelArg::Image(image) => {
                let ArgKind::Image(kind, _) = info.kind else {
                    return Err(Error::format(format!("argument {i} is not an image")));
                };
                let what = (image.number(), image.count(), &image.init);
                let address = self.filled(i, &info.name, what, queue)?;
                Binding::Image(image.at(address, kind), access(&image.read))
            }
        })
    }

    /// Allocates memory for numbers, filled with their content before the launch.
    fn filled(
        &mut self,
        i: usize,
        name: &str,
        (number, count, init): (Number, usize, &Init),
        queue: usize,
    ) -> Result<u64> {
        let failed = |e: GpuError| Error::launch(e.to_string());
        let address = self.gpu.allocate((count * number.size()) as u64, name).map_err(failed)?;
        let data = content(number, count, init, i as u64 + 1).map_err(|e| match init {
            Init::File(path) => Error::io("reading", path, &e),
            _ => Error::io("filling buffer", Path::new(name), &e),
        })?;
        if let Some(data) = data {
            let bytes = data.len() as u64;
            let fence = self.gpu.write(queue, address, data, None).map_err(failed)?;
            self.filled.push((fence, bytes));
        }
        Ok(address)
    }
}

/// Quotes a word for build options, in which spaces, quotes and backslashes are literal.
fn quoted(word: &str) -> String {
    let special = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '\\');
    word.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

/// Writes a buffer's content, as raw bytes or a NumPy file.
fn write_buffer(path: &Path, arg: &KernelArg, data: &[u8]) -> Result<()> {
    let file = match arg {
        KernelArg::Buffer { number, .. } if npy::is_one(path) => npy::file(*number, data),
        KernelArg::Image(image) if npy::is_one(path) => npy::file(image.number(), data),
        _ => data.to_vec(),
    };
    std::fs::write(path, file).map_err(|e| Error::io("writing", path, &e))
}

/// Returns the profile of this name, or of a TOML file.
pub fn profile(name: &str) -> Result<Profile> {
    if !name.ends_with(".toml") {
        return Profile::named(name).map_err(|e| Error::format(format!("--profile: {e}")));
    }
    let path = Path::new(name);
    let text = std::fs::read_to_string(path).map_err(|e| Error::io("reading", path, &e))?;
    Profile::parse(&text).map_err(|e| Error::format(format!("{name}: {e}")))
}

/// Returns the number of an argument that is a buffer, and whether the kernel only reads it.
fn buffer_of((i, arg): (usize, &KernelArg)) -> Option<(usize, bool)> {
    match arg {
        KernelArg::Buffer { read, .. } => Some((i, *read)),
        KernelArg::Image(image) => Some((i, image.read)),
        _ => None,
    }
}

/// Returns the largest number up to `most` that divides `n`.
fn largest_divisor(n: u64, most: u64) -> u64 {
    (1..=most.min(n)).rev().find(|d| n.is_multiple_of(*d)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_divide() {
        assert_eq!(quoted("T=unsigned int"), "T=unsigned\\ int");
        assert_eq!([100, 64, 7, 131].map(|n| largest_divisor(n, 64)), [50, 64, 7, 1]);
    }
}
