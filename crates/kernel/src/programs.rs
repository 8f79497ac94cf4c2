//! Built kernels of one device: in memory by kernel and defines, on disk by all inputs that determine the binary.
//!
//! A program consists of defines, prelude and the kernel's source. If a build fails, the error shows the log, the source lines that it names, and the
//! path of the full source.

use crate::cache::DiskCache;
use crate::define::Value;
use crate::guard::{self, BuildOutcome, Guard};
use crate::hash::Mix;
use crate::kernel::{Kernel, Reload};
use crate::order::{Order, entries};
use crate::text;
use crate::tune::Tuning;
use crate::vendors::{self, Header};
use netcl_device::driver::{KernelHandle, Program};
use netcl_device::{Device, Error, ErrorKind, Result};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

/// Cost of all builds so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct BuildStats {
    /// Programs compiled from source.
    pub compiled: u64,
    /// Programs taken from the disk cache, or known to be in the driver's cache.
    pub loaded: u64,
    /// Milliseconds spent building and loading.
    pub milliseconds: u64,
}

/// Defines of a program, and the size of its work-groups if that is an attribute of the kernel.
type Built<'a> = (&'a [(&'static str, Value)], Option<[usize; 3]>);

/// An entry whose work-groups have a size that is an attribute.
type SizedEntry<'a> = Option<(&'a str, [usize; 3])>;

/// A program, or `None` while it is being built. Other threads that need it wait for its lock, and other programs are built concurrently.
type Slot = Mutex<Option<Program>>;

/// A kernel and the largest number of work-items per group with which its binary starts.
#[derive(Clone)]
struct BuiltKernel {
    handle: Arc<KernelHandle>,
    group_limit: usize,
}

/// The programs of one device.
#[derive(Default)]
pub struct Programs {
    kernels: RwLock<HashMap<u128, BuiltKernel>>,
    programs: Mutex<HashMap<u128, Arc<Slot>>>,
    compiled: AtomicU64,
    loaded: AtomicU64,
    micros: AtomicU64,
    orders: Mutex<Option<Vec<Order>>>,
    /// The disk cache, if one may be used.
    disk: OnceLock<Option<DiskCache>>,
    /// Declarations of the driver's built-in functions, if sources receive only the ones they need.
    header: OnceLock<Option<Header>>,
    /// Guards first builds on a driver that has not passed a self-test; `None` for other drivers.
    guard: OnceLock<Option<Guard>>,
}

impl Programs {
    /// Returns the programs of `device`.
    pub fn of(device: &Device) -> Arc<Self> {
        device.extension(|_| Self::default())
    }

    /// Returns the kernel `entry` of `kernel` under `defines` for work-groups of size `local`, and builds it on first use.
    ///
    /// A compiler that does not know the size of the work-groups may use more registers per work-item than a large group has. Such a kernel is built
    /// again with its size as an attribute. Kernels that start as they are keep their source.
    pub(crate) fn get(
        &self,
        device: &Device,
        kernel: &Kernel,
        entry: &'static str,
        (defines, local): (&[(&'static str, Value)], [usize; 3]),
    ) -> Result<Arc<KernelHandle>> {
        let built = self.built(device, kernel, entry, (defines, None))?;
        let items = local.iter().product::<usize>();
        if items <= built.group_limit || items > device.capabilities().max_group {
            return Ok(built.handle);
        }
        Ok(self.built(device, kernel, entry, (defines, Some(local)))?.handle)
    }

    fn built(
        &self,
        device: &Device,
        kernel: &Kernel,
        entry: &'static str,
        (defines, group): Built<'_>,
    ) -> Result<BuiltKernel> {
        let key = key_of(kernel, entry, (defines, group));
        if let Some(found) = self.kernels.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(found.clone());
        }
        let program = self.program(device, kernel, (defines, group.map(|size| (entry, size))))?;
        let driver = device.driver();
        let handle = driver.kernel(&program, entry).map_err(|e| entry_error(kernel, entry, e))?;
        let group_limit = driver.kernel_group_limit(&handle).map_err(|e| e.context(entry))?;
        let built = BuiltKernel { handle: Arc::new(handle), group_limit };
        self.kernels.write().unwrap_or_else(PoisonError::into_inner).insert(key, built.clone());
        Ok(built)
    }

    fn program(
        &self,
        device: &Device,
        kernel: &Kernel,
        (defines, group): (&[(&'static str, Value)], SizedEntry<'_>),
    ) -> Result<Program> {
        let key = key_of(kernel, group.map_or("", |g| g.0), (defines, group.map(|g| g.1)));
        let slot = {
            let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(programs.entry(key).or_default())
        };
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = &*slot {
            return Ok(program.clone());
        }
        let mut order = Order::of(device, kernel, defines);
        if let Some((entry, size)) = group {
            order.require_group(entry, size);
            tracing::debug!("{entry}: building again for work-groups of {size:?}");
        }
        if let Some(orders) = self.orders.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            orders.push(order.clone());
        }
        let started = std::time::Instant::now();
        self.try_elsewhere(device, kernel, &order)?;
        let program = self.build(device, &order).map_err(|e| match e.kind() {
            ErrorKind::Build => build_error(device, kernel, &order.source, &e),
            _ => e.context(kernel.name),
        })?;
        let elapsed = started.elapsed();
        self.micros.fetch_add(u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        tracing::debug!("built {} in {elapsed:.0?}", kernel.name);
        *slot = Some(program.clone());
        Ok(program)
    }

    /// Lets another process build an order that the disk cache lacks, if this driver's compiler may end the calling process. Afterwards the binary is
    /// in the cache.
    fn try_elsewhere(&self, device: &Device, kernel: &Kernel, order: &Order) -> Result<()> {
        let guard = self.guard.get_or_init(|| guard::wanted(device).then(Guard::default));
        let (Some(guard), Some(builders)) = (guard, &device.settings().builders) else { return Ok(()) };
        let capabilities = device.capabilities();
        if self.disk(device).is_some_and(|disk| disk.knows(&DiskCache::key(order, capabilities))) {
            return Ok(());
        }
        let BuildOutcome::Ended(how) = guard.build(builders, &capabilities.id, order) else { return Ok(()) };
        let why = format!("the driver's compiler ended its process ({how})");
        Tuning::of(device).retire_crashing(device, kernel, &why);
        Err(Error::build(format!(
            "kernel {} on {} ({}, {} {}): {why}. Update the driver, or name another device with --device; `netcl devices` lists them",
            kernel.name,
            capabilities.id,
            capabilities.name,
            capabilities.platform,
            capabilities.driver_version
        )))
    }

    /// Returns the program of an order: from the disk cache, or compiled and stored there.
    pub(crate) fn build(&self, device: &Device, order: &Order) -> Result<Program> {
        let capabilities = device.capabilities();
        let disk = self.disk(device);
        let key = DiskCache::key(order, capabilities);
        if let Some(disk) = disk {
            if vendors::keeps_kernels(capabilities) {
                let known = disk.knows(&key);
                let program = self.compile(device, order, known)?;
                if !known {
                    disk.note(&key, &order.kernel, capabilities);
                }
                return Ok(program);
            }
            if let Some(binary) = disk.read(&key) {
                // The driver's cache uses source and options as the key: use the options that it was filled with.
                let options =
                    order.reload.map_or_else(|| order.options.clone(), |r| r.all_options(&order.options));
                match device.driver().load_binary(&binary, &options) {
                    Ok(program) => {
                        self.loaded.fetch_add(1, Ordering::Relaxed);
                        return Ok(program);
                    }
                    Err(e) => {
                        tracing::warn!(
                            "cached binary of {} is not usable, compiling again: {e}",
                            order.kernel
                        )
                    }
                }
            }
        }
        let program = self.compile(device, order, false)?;
        if let Some(disk) = disk {
            match device.driver().binary(&program) {
                Ok(binary) => disk.write(&key, &order.kernel, capabilities, &binary),
                Err(e) => tracing::debug!("no binary of {}: {e}", order.kernel),
            }
        }
        Ok(program)
    }

    /// Returns the disk cache. Warns once if the folder is not suitable.
    pub(crate) fn disk(&self, device: &Device) -> Option<&DiskCache> {
        let open = || {
            let disk = DiskCache::of(device.settings())?;
            match disk.distrust() {
                None => Some(disk),
                Some(why) => {
                    tracing::warn!("{why}");
                    None
                }
            }
        };
        self.disk.get_or_init(open).as_ref()
    }

    fn compile(&self, device: &Device, order: &Order, known: bool) -> Result<Program> {
        let counter = if known { &self.loaded } else { &self.compiled };
        counter.fetch_add(1, Ordering::Relaxed);
        let program = self.build_text(device, order)?;
        match order.reload {
            Some(how) => reload(device, &program, &order.options, how),
            None => Ok(program),
        }
    }

    /// Builds a source with the declarations that it needs, if the driver's complete header can be omitted.
    fn build_text(&self, device: &Device, order: &Order) -> Result<Program> {
        let header = self.header.get_or_init(|| vendors::header(device.capabilities()));
        if let Some(header) = header {
            let options = format!("{} {}", order.options, Header::OPTION);
            match device.driver().build(&header.before(&order.source), &options) {
                Ok(program) => return Ok(program),
                // The source calls an omitted function, or is wrong. In both cases a build of the original source reports the error with the right
                // lines.
                Err(e) if e.message().contains("error:") => {
                    tracing::debug!("building {} with the driver's whole header: {e}", order.kernel);
                }
                // An error that is not from the compiler would also occur with the complete header.
                Err(e) => return Err(e),
            }
        }
        device.driver().build(&order.source, &order.options)
    }

    /// Records the order of every program built from now on.
    pub fn start_recording(&self) {
        *self.orders.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
    }

    /// Stops recording and returns the order of every program built since [`Programs::start_recording`].
    pub fn stop_recording(&self) -> Vec<Order> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
    }

    /// Returns the cost of all builds so far.
    pub fn stats(&self) -> BuildStats {
        BuildStats {
            compiled: self.compiled.load(Ordering::Relaxed),
            loaded: self.loaded.load(Ordering::Relaxed),
            milliseconds: self.micros.load(Ordering::Relaxed) / 1000,
        }
    }
}

impl Reload {
    fn all_options(&self, options: &str) -> String {
        format!("{options} {}", self.options)
    }
}

/// Rebuilds the program with the instructions of its architecture: see [`Kernel::reload`].
fn reload(device: &Device, program: &Program, options: &str, how: &Reload) -> Result<Program> {
    let driver = device.driver();
    let text = String::from_utf8(driver.binary(program)?)
        .map_err(|_| Error::build("the driver's binary is not text".to_string()))?;
    let text = (how.patch)(text.trim_end_matches('\0'));
    let program = driver.load_binary(text.as_bytes(), &how.all_options(options))?;
    match (how.complaint)(&driver.build_log(&program)?) {
        Some(why) => Err(Error::build(why)),
        None => Ok(program),
    }
}

/// Returns an error that a source lacks this entry, with a list of its entries. Adds the kernel name to any other driver error.
fn entry_error(kernel: &Kernel, entry: &str, cause: Error) -> Error {
    let generated = kernel.generated.map(|text| text()).unwrap_or_default();
    let texts = kernel.includes.iter().copied().chain([generated.as_str(), kernel.source]);
    let names: Vec<String> = texts.flat_map(entries).collect();
    if names.iter().any(|name| name == entry) {
        return cause.context(kernel.name);
    }
    let there = if names.is_empty() { "none".into() } else { names.join(", ") };
    Error::new(
        cause.kind(),
        format!(
            "the source of kernel {} does not have an entry {entry}; its entries are: {there} ({})",
            kernel.name,
            cause.message()
        ),
    )
}

/// Returns a build error that stores and names the source file, and shows the lines that the log refers to.
fn build_error(device: &Device, kernel: &Kernel, source: &str, cause: &Error) -> Error {
    let own = || std::env::temp_dir().join(format!("netcl-{}", std::process::id()));
    let folder = device.settings().cache_dir.clone().unwrap_or_else(own).join("failed");
    let path = folder.join(format!("{}.cl", kernel.name));
    let saved = netcl_device::files::create_private(&folder)
        .and_then(|()| netcl_device::files::replace(&path, source.as_bytes()));
    let place = match saved {
        Ok(()) => format!("the full source is in {}", path.display()),
        Err(e) => format!("the source could not be saved to {}: {e}", path.display()),
    };
    let quoted = text::quote_lines(source, cause.message());
    Error::build(format!(
        "kernel {} does not compile on {} ({}): {}\n{quoted}{place}",
        kernel.name,
        device.capabilities().id,
        device.capabilities().name,
        cause.message()
    ))
}

/// Returns the in-memory key. Kernels are statics, so their address identifies them.
fn key_of(kernel: &Kernel, entry: &str, built: Built<'_>) -> u128 {
    Mix::of(&(std::ptr::from_ref(kernel) as usize, entry, built))
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_device::Settings;

    /// Covers names assembled by macros, functions with many overloads, and missing functions.
    #[test]
    fn pocl_builds_texts_with_parts_of_its_header() {
        static TEXT: Kernel = Kernel::new(
            "header_test",
            "__kernel void k(__global float *x, volatile __global int *n, __local float *l) {\n\
               float4 v = CAT(vload, 4)(0, x) + exp(x[4]) + fmax(x[5], 1.0f);\n\
               l[get_local_id(0)] = dot(v, v);\n  barrier(CLK_LOCAL_MEM_FENCE);\n\
               atomic_add(n, convert_int_rte(l[0]) + CAT(CAT(convert_int, 4), _sat)(v).x);\n}",
        );
        static WRONG: Kernel =
            Kernel::new("header_wrong", "__kernel void k(__global float *x) { x[0] = no_such(x[0]); }");
        let Ok(device) = Device::open("pocl:0", &Settings::default()) else { return };
        // Other PoCL builds do not have a separate header.
        let Some(header) = vendors::header(device.capabilities()) else { return };
        let order = Order::of(&device, &TEXT, &[]);
        let text = header.before(&order.source);
        assert!(text.contains("exp(float4)") && !text.contains("sin(float4)"));
        let options = format!("{} {}", order.options, Header::OPTION);
        device.driver().build(&text, &options).unwrap();
        let x = device.allocate(64).unwrap();
        let error = WRONG.launch("k").write(&x).groups(1).run().unwrap_err().to_string();
        assert!(error.contains("no_such") && error.contains("header_wrong"), "{error}");
    }

    #[test]
    fn a_wrong_entry_names_the_text_and_its_entries() {
        static WRONG: Kernel = Kernel::new(
            "entry_test",
            "__kernel void one(__global float *x) {} __kernel void two(__global float *x) {}",
        );
        let device = Device::open("sim", &Settings::default()).unwrap();
        let x = device.allocate(64).unwrap();
        let error = WRONG.launch("three").write(&x).groups(1).run().unwrap_err();
        assert!(
            error
                .message()
                .contains("kernel entry_test does not have an entry three; its entries are: one, two"),
            "{error}"
        );
    }
}
