//! The context of a device. All devices that a process opens on one PoCL processor share a context, with the programs that were built in it, until
//! the process ends.
//!
//! PoCL parses its library of built-in functions for the first program that it compiles, which takes half a second. It drops the library with the
//! last context of the process. It also preprocesses every source that it gets, even if it has compiled the same source before. Ranks that are
//! threads of one process, and runs that follow each other, would pay for both each time. Devices of other drivers have a context each, so that a
//! failure in one does not reach another.

use super::discover::OpenClDevice;
use super::result::{check, need};
use super::sys::{Ptr, Table};
use crate::Result;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Contexts of PoCL's processors, which stay until the process ends.
static SHARED: Mutex<Vec<Arc<Context>>> = Mutex::new(Vec::new());

/// A context of one device.
pub(super) struct Context {
    table: Table,
    device: Ptr,
    pub ptr: Ptr,
    /// Built programs by the hash of source and options, if devices share the context.
    programs: Option<Mutex<HashMap<[u8; 32], Arc<Slot>>>>,
}

// SAFETY: OpenCL 1.2 contexts and programs may be used from any thread (appendix A.2).
unsafe impl Send for Context {}
// SAFETY: same as above.
unsafe impl Sync for Context {}

/// A program that the context owns; null while it is being built. Other threads that need it wait for the lock.
struct Slot(Mutex<Ptr>);

// SAFETY: see `Context`.
unsafe impl Send for Slot {}
// SAFETY: see `Context`.
unsafe impl Sync for Slot {}

impl Context {
    /// Returns the context for a device: a new one, or the one that devices of a PoCL processor share.
    pub fn of(device: &OpenClDevice) -> Result<Arc<Self>> {
        let capabilities = &device.capabilities;
        if !(capabilities.id.starts_with("pocl:") && capabilities.is_cpu()) {
            return Self::new(device, None).map(Arc::new);
        }
        let mut shared = lock(&SHARED);
        if let Some(found) = shared.iter().find(|context| context.device == device.id) {
            return Ok(Arc::clone(found));
        }
        let context = Arc::new(Self::new(device, Some(Mutex::default()))?);
        shared.push(Arc::clone(&context));
        Ok(context)
    }

    fn new(device: &OpenClDevice, programs: Option<Mutex<HashMap<[u8; 32], Arc<Slot>>>>) -> Result<Self> {
        let (table, id) = (device.platform.table, device.id);
        let create = need(table.clCreateContext, "clCreateContext")?;
        let properties = [0x1084isize, device.platform.id as isize, 0];
        let mut code = 0;
        // SAFETY: the list is zero-terminated, the device belongs to the platform, no callback is given.
        let ptr = unsafe {
            create(
                properties.as_ptr(),
                1,
                &raw const id,
                std::ptr::null(),
                std::ptr::null_mut(),
                &raw mut code,
            )
        };
        check("clCreateContext", || device.capabilities.name.clone(), code)?;
        Ok(Self { table, device: id, ptr, programs })
    }

    /// Returns an owner of the program of a source and options: that of `build`, which also returns the program, or that of `found` for a program
    /// of this context. Errors are not kept.
    pub fn program<T>(
        &self,
        (source, options): (&str, &str),
        build: impl FnOnce() -> Result<(Ptr, T)>,
        found: impl FnOnce(Ptr) -> T,
    ) -> Result<T> {
        let (Some(programs), Some(retain)) = (&self.programs, self.table.clRetainProgram) else {
            return build().map(|(_, owner)| owner);
        };
        let slot = Arc::clone(lock(programs).entry(key(source, options)).or_insert_with(Slot::empty));
        let mut kept = lock(&slot.0);
        let (ptr, built) =
            if kept.is_null() { build().map(|(ptr, owner)| (ptr, Some(owner)))? } else { (*kept, None) };
        // SAFETY: a live program. The context has one reference to it, and each owner has another.
        check("clRetainProgram", || format!("options {options}"), unsafe { retain(ptr) })?;
        *kept = ptr;
        Ok(built.unwrap_or_else(|| found(ptr)))
    }
}

impl Drop for Context {
    /// Releases the context. Contexts with programs are never dropped.
    fn drop(&mut self) {
        if let (Some(release), false) = (self.table.clReleaseContext, self.ptr.is_null()) {
            // SAFETY: the context is ours and released once.
            unsafe { release(self.ptr) };
        }
    }
}

impl Slot {
    fn empty() -> Arc<Self> {
        Arc::new(Self(Mutex::new(std::ptr::null_mut())))
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the hash of a source and its options.
fn key(source: &str, options: &str) -> [u8; 32] {
    let mut hash = blake3::Hasher::new();
    hash.update(&options.len().to_le_bytes()).update(options.as_bytes()).update(source.as_bytes());
    *hash.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use crate::driver::Driver;
    use crate::opencl::objects::ClProgram;
    use crate::opencl::{OpenClDriver, devices};
    use crate::{Capabilities, Settings};

    const SOURCE: &str = "__kernel void k(__global int *x) { x[get_global_id(0)] = N; }";

    fn drivers() -> Option<[OpenClDriver; 2]> {
        let found = devices(&Settings::default()).ok()?;
        let device =
            found.iter().find(|d| d.capabilities.id.starts_with("pocl:") && d.capabilities.is_cpu())?;
        Some([0; 2].map(|_| OpenClDriver::open(device, false).unwrap()))
    }

    /// The second device gets the program of the first one, also after the first one is closed. Other options and sources with errors do not match.
    #[test]
    fn devices_of_one_processor_build_a_source_once() {
        let Some([one, two]) = drivers() else { return };
        let program = |driver: &OpenClDriver, options: &str| {
            let program = driver.build(SOURCE, options).unwrap();
            program.get::<ClProgram>().unwrap().0.ptr as usize
        };
        let first = program(&one, "-DN=7");
        assert_eq!(program(&two, "-DN=7"), first);
        assert_ne!(program(&two, "-DN=8"), first);
        for driver in [&one, &two] {
            let wrong = driver.build(SOURCE, "-DN=no_number").err().unwrap().to_string();
            assert!(wrong.contains("no_number"), "{wrong}");
        }
        drop(one);
        assert_eq!(program(&two, "-DN=7"), first);
        let built = two.build(SOURCE, "-DN=7").unwrap();
        let kernel = two.kernel(&built, "k").unwrap();
        let Capabilities { max_group, .. } = two.capabilities();
        assert!((1..=*max_group).contains(&two.kernel_group_limit(&kernel).unwrap()));
    }
}
