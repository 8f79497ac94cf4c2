//! Kernels: arguments, queries, launches.

mod info;
mod launch;

pub use info::{get_kernel_arg_info, get_kernel_info, get_kernel_sub_group_info, get_kernel_work_group_info};
pub use launch::{enqueue_nd_range_kernel, enqueue_task};

use crate::cl;
use crate::cl::{Code, Result};
use crate::memory::Mem;
use crate::program::Program;
use crate::raw::{Handle, In, Out};
use crate::registry::{self, Object, Tag};
use crate::sampler::Sampler;
use aethercl::image::Sampler as Bits;
use aethercl::types::{ImageAccess, ImageKind};
use aethercl::{ArgKind, KernelInfo};
use std::ffi::c_char;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A kernel with its arguments.
pub struct Kernel {
    tag: Tag,
    /// The program that it was created from.
    pub program: Arc<Program>,
    /// Its name and parameters.
    pub info: KernelInfo,
    values: Mutex<Vec<Option<Value>>>,
}

/// An argument.
#[derive(Clone)]
pub enum Value {
    /// A buffer, or null. The reference is weak: following the standard, setting an argument does not retain the buffer.
    Mem(Option<Weak<Mem>>),
    /// Local memory of this many bytes.
    Local(usize),
    /// A sampler.
    Sampler(Bits),
    /// A value.
    Bytes(Vec<u8>),
}

impl Object for Kernel {
    const INVALID: Code = cl::INVALID_KERNEL;
    const NAME: &'static str = "kernel";
    fn tag(&self) -> &Tag {
        &self.tag
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.program.kernels.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Kernel {
    fn make(program: &Arc<Program>, info: &KernelInfo, values: Vec<Option<Value>>) -> Handle {
        program.kernels.fetch_add(1, Ordering::Relaxed);
        let (program, values) = (Arc::clone(program), Mutex::new(values));
        registry::publish(&Arc::new(Self { tag: Tag::default(), program, info: info.clone(), values }))
    }

    /// Returns the arguments by index; `None` for an argument that was never set.
    pub fn values(&self) -> MutexGuard<'_, Vec<Option<Value>>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `clCreateKernel`.
pub fn create_kernel(program: Handle, name: In<c_char>) -> Result<Handle> {
    let program = registry::get::<Program>(program)?;
    let name = name.text().ok_or(cl::INVALID_VALUE)?;
    let built = program.any()?;
    let info = built.kernel(&name).ok_or(cl::INVALID_KERNEL_NAME)?;
    Ok(Kernel::make(&program, info, vec![None; info.args.len()]))
}

/// `clCreateKernelsInProgram`.
pub fn create_kernels_in_program(program: Handle, room: u32, to: Out<Handle>, count: Out<u32>) -> Result<()> {
    let program = registry::get::<Program>(program)?;
    let built = program.any()?;
    if !to.is_null() {
        if (room as usize) < built.kernels().len() {
            return Err(cl::INVALID_VALUE);
        }
        let new = |info: &KernelInfo| Kernel::make(&program, info, vec![None; info.args.len()]);
        to.set_list(&built.kernels().iter().map(new).collect::<Vec<_>>());
    }
    count.set(built.kernels().len() as u32);
    Ok(())
}

/// `clCloneKernel`.
pub fn clone_kernel(kernel: Handle) -> Result<Handle> {
    let kernel = registry::get::<Kernel>(kernel)?;
    let values = kernel.values().clone();
    Ok(Kernel::make(&kernel.program, &kernel.info, values))
}

/// Reads the bytes of an argument as a handle; returns a null handle for a null pointer.
fn handle_at(value: In<u8>) -> Handle {
    let raw = value.list(size_of::<Handle>());
    raw.try_into().map_or(Handle::NULL, |b| Handle(usize::from_ne_bytes(b)))
}

/// Checks that a memory object is an image of the kind and access that the parameter requires.
fn image(kernel: &Kernel, handle: Handle, kind: ImageKind, access: ImageAccess) -> Result<Value> {
    let mem = registry::get::<Mem>(handle)?;
    let picture = mem.picture.ok_or(cl::INVALID_MEM_OBJECT)?;
    if !Arc::ptr_eq(&mem.context, &kernel.program.context) {
        return Err(cl::INVALID_MEM_OBJECT);
    }
    let against = match access {
        ImageAccess::Read => cl::MEM_WRITE_ONLY,
        ImageAccess::Write => cl::MEM_READ_ONLY,
        ImageAccess::Both => cl::MEM_READ_ONLY | cl::MEM_WRITE_ONLY,
    };
    if picture.shape.kind != kind || mem.flags & against != 0 {
        return Err(cl::INVALID_ARG_VALUE);
    }
    Ok(Value::Mem(Some(Arc::downgrade(&mem))))
}

/// `clSetKernelArg`.
pub fn set_kernel_arg(kernel: Handle, index: u32, size: usize, value: In<u8>) -> Result<()> {
    let kernel = registry::get::<Kernel>(kernel)?;
    let arg = kernel.info.args.get(index as usize).ok_or(cl::INVALID_ARG_INDEX)?;
    let value = match arg.kind {
        ArgKind::Local if !value.is_null() => return Err(cl::INVALID_ARG_VALUE),
        ArgKind::Local if size == 0 => return Err(cl::INVALID_ARG_SIZE),
        ArgKind::Local => Value::Local(size),
        ArgKind::Buffer { .. } | ArgKind::Image(..) | ArgKind::Sampler if size != size_of::<Handle>() => {
            return Err(cl::INVALID_ARG_SIZE);
        }
        ArgKind::Image(kind, access) => image(&kernel, handle_at(value), kind, access)?,
        ArgKind::Sampler => {
            let sampler = registry::get::<Sampler>(handle_at(value))?;
            if !Arc::ptr_eq(&sampler.context, &kernel.program.context) {
                return Err(cl::INVALID_SAMPLER);
            }
            Value::Sampler(sampler.bits)
        }
        ArgKind::Buffer { .. } => {
            let handle = handle_at(value);
            let mem = (handle != Handle::NULL).then(|| registry::get::<Mem>(handle)).transpose()?;
            if mem.as_ref().is_some_and(|m| m.picture.is_some()) {
                return Err(cl::INVALID_MEM_OBJECT);
            }
            if mem.as_ref().is_some_and(|m| !Arc::ptr_eq(&m.context, &kernel.program.context)) {
                return Err(cl::INVALID_MEM_OBJECT);
            }
            Value::Mem(mem.as_ref().map(Arc::downgrade))
        }
        ArgKind::Value(bytes) if size as u64 != bytes => return Err(cl::INVALID_ARG_SIZE),
        ArgKind::Value(_) if value.is_null() => return Err(cl::INVALID_ARG_VALUE),
        ArgKind::Value(_) => Value::Bytes(value.list(size)),
    };
    kernel.values()[index as usize] = Some(value);
    Ok(())
}
