//! Queries of kernels: `clGetKernelInfo`, `clGetKernelArgInfo`, `clGetKernelWorkGroupInfo`.

use super::{Kernel, Value};
use crate::answer::Room;
use crate::cl;
use crate::cl::Result;
use crate::device::Device;
use crate::raw::{Handle, In};
use crate::registry;
use aethercl::hir::{self, Local};
use aethercl::types::{ImageAccess, Space, Type, Types};
use std::sync::Arc;

/// `clGetKernelInfo`.
pub fn get_kernel_info(handle: Handle, name: u32, room: Room) -> Result<()> {
    let kernel = registry::get::<Kernel>(handle)?;
    match name {
        cl::KERNEL_FUNCTION_NAME => room.give(kernel.info.name.as_str()),
        cl::KERNEL_NUM_ARGS => room.give(&(kernel.info.args.len() as u32)),
        cl::KERNEL_REFERENCE_COUNT => room.give(&registry::references(&*kernel)),
        cl::KERNEL_CONTEXT => room.give(&kernel.program.context.handle()),
        cl::KERNEL_PROGRAM => room.give(&registry::Object::tag(&*kernel.program).handle()),
        cl::KERNEL_ATTRIBUTES => room.give(attributes(&kernel)?.as_str()),
        _ => Err(cl::INVALID_VALUE),
    }
}

/// Returns the attributes in source form.
fn attributes(kernel: &Kernel) -> Result<String> {
    let program = kernel.program.any()?;
    let id = program.hir().kernel(&kernel.info.name).ok_or(cl::INVALID_KERNEL)?;
    let own: Vec<hir::Kernel> = program.hir().function(id).kernel.iter().cloned().collect();
    let mut out = Vec::new();
    for k in own {
        let sizes = |name: &str, s: [u64; 3]| format!("{name}({},{},{})", s[0], s[1], s[2]);
        out.extend(k.required_group.map(|s| sizes("reqd_work_group_size", s)));
        out.extend(k.group_hint.map(|s| sizes("work_group_size_hint", s)));
        out.extend(k.vector_hint.map(|ty| format!("vec_type_hint({ty})")));
        out.extend(k.required_sub_group.map(|n| format!("intel_reqd_sub_group_size({n})")));
    }
    Ok(out.join(" "))
}

/// `clGetKernelArgInfo`.
pub fn get_kernel_arg_info(handle: Handle, index: u32, name: u32, room: Room) -> Result<()> {
    let kernel = registry::get::<Kernel>(handle)?;
    if index as usize >= kernel.info.args.len() {
        return Err(cl::INVALID_ARG_INDEX);
    }
    let program = kernel.program.any()?;
    let hir = program.hir();
    let id = hir.kernel(&kernel.info.name).ok_or(cl::INVALID_KERNEL)?;
    let local = hir.function(id).locals.get(index as usize).ok_or(cl::INVALID_ARG_INDEX)?;
    match name {
        cl::KERNEL_ARG_ADDRESS_QUALIFIER => room.give(&address_space(&hir.types, local)),
        // Only images and pipes have an access qualifier.
        cl::KERNEL_ARG_ACCESS_QUALIFIER => room.give(&match local.ty {
            Type::Image(_, ImageAccess::Read) => cl::KERNEL_ARG_ACCESS_READ_ONLY,
            Type::Image(_, ImageAccess::Write) => cl::KERNEL_ARG_ACCESS_WRITE_ONLY,
            Type::Image(_, ImageAccess::Both) => cl::KERNEL_ARG_ACCESS_READ_WRITE,
            _ => cl::KERNEL_ARG_ACCESS_NONE,
        }),
        cl::KERNEL_ARG_TYPE_NAME => room.give(type_name(&hir.types, local.ty).as_str()),
        cl::KERNEL_ARG_TYPE_QUALIFIER => room.give(&qualifiers(&hir.types, local)),
        cl::KERNEL_ARG_NAME => room.give(local.name.as_str()),
        _ => Err(cl::INVALID_VALUE),
    }
}

fn address_space(types: &Types, local: &Local) -> u32 {
    if matches!(local.ty, Type::Image(..)) {
        return cl::KERNEL_ARG_ADDRESS_GLOBAL;
    }
    match types.pointee(local.ty).map(|to| to.space) {
        Some(Space::Global | Space::Generic) => cl::KERNEL_ARG_ADDRESS_GLOBAL,
        Some(Space::Constant) => cl::KERNEL_ARG_ADDRESS_CONSTANT,
        Some(Space::Local) => cl::KERNEL_ARG_ADDRESS_LOCAL,
        Some(Space::Private) | None => cl::KERNEL_ARG_ADDRESS_PRIVATE,
    }
}

/// Returns the type without qualifiers, `float*`.
fn type_name(types: &Types, ty: Type) -> String {
    if let Type::Image(kind, _) = ty {
        return kind.name().to_string();
    }
    match types.pointee(ty) {
        Some(to) => format!("{}*", type_name(types, to.to)),
        None => types.name(ty),
    }
}

/// Returns the type qualifiers: those of a pointer's target type and the pointer's own `restrict`. Values have none because they are passed by copy.
fn qualifiers(types: &Types, local: &Local) -> u64 {
    let Some(to) = types.pointee(local.ty) else { return cl::KERNEL_ARG_TYPE_NONE };
    let constant = to.is_const || to.space == Space::Constant;
    let bit = |set: bool, bit: u64| if set { bit } else { 0 };
    bit(constant, cl::KERNEL_ARG_TYPE_CONST)
        | bit(to.is_volatile, cl::KERNEL_ARG_TYPE_VOLATILE)
        | bit(local.is_restrict, cl::KERNEL_ARG_TYPE_RESTRICT)
}

/// Returns the device of a call, or the only device if the handle is null.
fn device_of(kernel: &Kernel, device: Handle) -> Result<Arc<Device>> {
    let context = &kernel.program.context;
    match &context.devices[..] {
        [one] if device == Handle::NULL => Ok(Arc::clone(one)),
        _ => context.device(device),
    }
}

/// `clGetKernelWorkGroupInfo`.
pub fn get_kernel_work_group_info(handle: Handle, device: Handle, name: u32, room: Room) -> Result<()> {
    let kernel = registry::get::<Kernel>(handle)?;
    let device = device_of(&kernel, device)?;
    let compute = &device.profile.compute;
    match name {
        cl::KERNEL_WORK_GROUP_SIZE => room.give(&(compute.max_group as usize)),
        cl::KERNEL_COMPILE_WORK_GROUP_SIZE => {
            room.give(&kernel.info.required_group.unwrap_or_default().map(|n| n as usize)[..])
        }
        cl::KERNEL_LOCAL_MEM_SIZE => room.give(&local_bytes(&kernel)),
        cl::KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE => room.give(&(compute.simd_width as usize)),
        cl::KERNEL_PRIVATE_MEM_SIZE => room.give(&0u64),
        // Defined only for custom devices and built-in kernels.
        cl::KERNEL_GLOBAL_WORK_SIZE => Err(cl::INVALID_VALUE),
        _ => Err(cl::INVALID_VALUE),
    }
}

/// Returns the bytes of local memory: variables of the kernel and local arguments set so far.
pub(super) fn local_bytes(kernel: &Kernel) -> u64 {
    let given = |v: &Option<Value>| match v {
        // Rounding up would overflow for the largest sizes.
        Some(Value::Local(bytes)) => (*bytes as u64).checked_next_multiple_of(8).unwrap_or(u64::MAX),
        _ => 0,
    };
    kernel.values().iter().map(given).fold(kernel.info.local_bytes, u64::saturating_add)
}

/// `clGetKernelSubGroupInfo`.
pub fn get_kernel_sub_group_info(
    handle: Handle,
    device: Handle,
    name: u32,
    input_size: usize,
    input: In<u8>,
    room: Room,
) -> Result<()> {
    let kernel = registry::get::<Kernel>(handle)?;
    let device = device_of(&kernel, device)?;
    let compute = &device.profile.compute;
    if !compute.subgroups {
        return Err(cl::INVALID_OPERATION);
    }
    let lanes = kernel.info.required_sub_group.unwrap_or(compute.simd_width).max(1) as usize;
    let word = size_of::<usize>();
    let items = || -> Result<usize> {
        if input.is_null() || input_size == 0 || !input_size.is_multiple_of(word) || input_size > 3 * word {
            return Err(cl::INVALID_VALUE);
        }
        let bytes = input.list(input_size);
        let mut sizes = bytes.chunks_exact(word).map(|b| b.try_into().map_or(0, usize::from_ne_bytes));
        sizes.try_fold(1usize, usize::checked_mul).ok_or(cl::INVALID_VALUE)
    };
    match name {
        cl::KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE => {
            items()?;
            room.give(&lanes)
        }
        cl::KERNEL_SUB_GROUP_COUNT_FOR_NDRANGE => room.give(&items()?.div_ceil(lanes)),
        cl::KERNEL_LOCAL_SIZE_FOR_SUB_GROUP_COUNT => {
            let wanted = input.list(input_size).try_into().map(usize::from_ne_bytes);
            let groups = wanted.map_err(|_| cl::INVALID_VALUE)?;
            let items = groups.checked_mul(lanes).filter(|n| *n <= compute.max_group as usize);
            let line = items.map_or([0; 3], |n| [n, 1, 1]);
            room.give(&line[..(room.size / word).clamp(1, 3)])
        }
        cl::KERNEL_MAX_NUM_SUB_GROUPS => room.give(&(compute.max_group as usize / lanes)),
        cl::KERNEL_COMPILE_NUM_SUB_GROUPS => room.give(&0usize),
        _ => Err(cl::INVALID_VALUE),
    }
}
