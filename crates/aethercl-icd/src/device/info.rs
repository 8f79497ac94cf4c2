//! Queries of the platform and of devices.

use super::{Device, platform};
use crate::answer::Room;
use crate::cl;
use crate::cl::Result;
use crate::limits;
use crate::raw::Handle;
use crate::registry;
use aethercl::model::Profile;

/// `CL_DEVICE_VERSION` and `CL_PLATFORM_VERSION`.
const VERSION: &str = concat!("OpenCL 3.0 AetherCL ", env!("CARGO_PKG_VERSION"));
const OPENCL_C: &str = concat!("OpenCL C 1.2 AetherCL ", env!("CARGO_PKG_VERSION"));
const DRIVER: &str = env!("CARGO_PKG_VERSION");

/// Encodes a `cl_version`.
const fn version(major: u32, minor: u32, patch: u32) -> u32 {
    major << 22 | minor << 12 | patch
}

/// Returns the extensions of a device, of its compiler and of the host API.
pub(super) fn extensions(profile: &Profile) -> Vec<String> {
    let c = &profile.compute;
    let always = [
        "cl_khr_3d_image_writes",
        "cl_khr_byte_addressable_store",
        "cl_khr_extended_versioning",
        "cl_khr_global_int32_base_atomics",
        "cl_khr_global_int32_extended_atomics",
        "cl_khr_icd",
        "cl_khr_image2d_from_buffer",
        "cl_khr_int64_base_atomics",
        "cl_khr_int64_extended_atomics",
        "cl_khr_local_int32_base_atomics",
        "cl_khr_local_int32_extended_atomics",
    ];
    let optional = [
        (c.fp16, "cl_khr_fp16"),
        (c.fp64, "cl_khr_fp64"),
        (c.subgroups, "cl_khr_subgroups"),
        (c.subgroups, "cl_khr_subgroup_ballot"),
        (c.subgroups, "cl_khr_subgroup_shuffle"),
        (c.subgroups, "cl_khr_subgroup_shuffle_relative"),
    ];
    let optional = optional.iter().filter(|(has, _)| *has).map(|(_, name)| *name);
    always.into_iter().chain(optional).map(String::from).collect()
}

/// Returns the extensions that a device reports. `cl_khr_subgroups` is omitted: it guarantees independent forward progress of sub-groups, but here
/// the sub-groups of a work-group run in lockstep. Programs can test `__opencl_c_subgroups`; the compiler accepts both names.
fn offered(device: &Device) -> impl Iterator<Item = &str> {
    device.target.extensions.iter().map(String::as_str).filter(|e| *e != "cl_khr_subgroups")
}

/// `clGetPlatformInfo`.
pub fn platform_info(handle: Handle, name: u32, room: Room) -> Result<()> {
    if handle != platform() && handle != Handle::NULL {
        return Err(cl::INVALID_PLATFORM);
    }
    match name {
        cl::PLATFORM_PROFILE => room.give("FULL_PROFILE"),
        cl::PLATFORM_VERSION => room.give(VERSION),
        cl::PLATFORM_NAME => room.give("AetherCL"),
        cl::PLATFORM_VENDOR => room.give("AetherCL"),
        cl::PLATFORM_EXTENSIONS => room.give("cl_khr_icd cl_khr_extended_versioning"),
        cl::PLATFORM_ICD_SUFFIX_KHR => room.give("AETHERCL"),
        cl::PLATFORM_HOST_TIMER_RESOLUTION => room.give(&1u64),
        cl::PLATFORM_NUMERIC_VERSION => room.give(&version(3, 0, 0)),
        cl::PLATFORM_EXTENSIONS_WITH_VERSION => {
            let list = [(version(1, 0, 0), "cl_khr_icd"), (version(1, 0, 0), "cl_khr_extended_versioning")];
            room.give(&list[..])
        }
        _ => Err(cl::INVALID_VALUE),
    }
}

/// Answers some of the queries; returns `None` for a name that it does not handle.
type Group = fn(&Device, u32, Room) -> Option<Result<()>>;

/// `clGetDeviceInfo`.
pub fn device_info(handle: Handle, name: u32, room: Room) -> Result<()> {
    let device = registry::get::<Device>(handle)?;
    let groups: [Group; 6] = [identity, compute, vectors, memory, images, newer];
    groups.iter().find_map(|group| group(&device, name, room)).unwrap_or(Err(cl::INVALID_VALUE))
}

fn identity(device: &Device, name: u32, room: Room) -> Option<Result<()>> {
    let p = &device.profile;
    Some(match name {
        cl::DEVICE_TYPE => room.give(&cl::DEVICE_TYPE_GPU),
        cl::DEVICE_VENDOR_ID => room.give(&0x4145u32),
        cl::DEVICE_NAME => room.give(p.title.as_str()),
        cl::DEVICE_VENDOR => room.give(p.vendor.as_str()),
        cl::DRIVER_VERSION => room.give(DRIVER),
        cl::DEVICE_PROFILE => room.give("FULL_PROFILE"),
        cl::DEVICE_VERSION => room.give(VERSION),
        cl::DEVICE_OPENCL_C_VERSION => room.give(OPENCL_C),
        cl::DEVICE_EXTENSIONS => room.give(offered(device).collect::<Vec<_>>().join(" ").as_str()),
        cl::DEVICE_BUILT_IN_KERNELS => room.give(""),
        cl::DEVICE_PLATFORM => room.give(&platform()),
        cl::DEVICE_AVAILABLE | cl::DEVICE_COMPILER_AVAILABLE | cl::DEVICE_LINKER_AVAILABLE => {
            room.give(&true)
        }
        cl::DEVICE_ENDIAN_LITTLE => room.give(&true),
        cl::DEVICE_ADDRESS_BITS => room.give(&64u32),
        cl::DEVICE_EXECUTION_CAPABILITIES => room.give(&cl::EXEC_KERNEL),
        cl::DEVICE_QUEUE_PROPERTIES => {
            room.give(&(cl::QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | cl::QUEUE_PROFILING_ENABLE))
        }
        cl::DEVICE_PREFERRED_INTEROP_USER_SYNC => room.give(&true),
        cl::DEVICE_PROFILING_TIMER_RESOLUTION => room.give(&1usize),
        cl::DEVICE_PARENT_DEVICE => room.give(&Handle::NULL),
        cl::DEVICE_PARTITION_MAX_SUB_DEVICES => room.give(&0u32),
        cl::DEVICE_PARTITION_PROPERTIES | cl::DEVICE_PARTITION_TYPE => room.give(&[0usize][..]),
        cl::DEVICE_PARTITION_AFFINITY_DOMAIN => room.give(&0u64),
        cl::DEVICE_REFERENCE_COUNT => room.give(&1u32),
        _ => return None,
    })
}

fn compute(device: &Device, name: u32, room: Room) -> Option<Result<()>> {
    let c = &device.profile.compute;
    let float = cl::FP_FMA
        | cl::FP_INF_NAN
        | cl::FP_DENORM
        | cl::FP_ROUND_TO_NEAREST
        | cl::FP_ROUND_TO_ZERO
        | cl::FP_ROUND_TO_INF;
    Some(match name {
        cl::DEVICE_MAX_COMPUTE_UNITS => room.give(&c.units),
        cl::DEVICE_MAX_CLOCK_FREQUENCY => room.give(&c.clock_mhz),
        cl::DEVICE_MAX_WORK_ITEM_DIMENSIONS => room.give(&3u32),
        cl::DEVICE_MAX_WORK_GROUP_SIZE => room.give(&(c.max_group as usize)),
        cl::DEVICE_MAX_WORK_ITEM_SIZES => room.give(&[c.max_group as usize; 3][..]),
        cl::DEVICE_SINGLE_FP_CONFIG => room.give(&(float | cl::FP_CORRECTLY_ROUNDED_DIVIDE_SQRT)),
        cl::DEVICE_DOUBLE_FP_CONFIG => room.give(&if c.fp64 { float } else { 0 }),
        cl::DEVICE_HALF_FP_CONFIG => room.give(&if c.fp16 { float } else { 0 }),
        cl::DEVICE_PRINTF_BUFFER_SIZE => room.give(&(1usize << 20)),
        cl::DEVICE_ERROR_CORRECTION_SUPPORT => room.give(&false),
        _ => return None,
    })
}

/// Returns vector widths. Preferred widths are 1 because lanes are scalar.
fn vectors(device: &Device, name: u32, room: Room) -> Option<Result<()>> {
    let c = &device.profile.compute;
    Some(match name {
        cl::DEVICE_PREFERRED_VECTOR_WIDTH_CHAR | cl::DEVICE_NATIVE_VECTOR_WIDTH_CHAR => room.give(&1u32),
        cl::DEVICE_PREFERRED_VECTOR_WIDTH_SHORT | cl::DEVICE_NATIVE_VECTOR_WIDTH_SHORT => room.give(&1u32),
        cl::DEVICE_PREFERRED_VECTOR_WIDTH_INT | cl::DEVICE_NATIVE_VECTOR_WIDTH_INT => room.give(&1u32),
        cl::DEVICE_PREFERRED_VECTOR_WIDTH_LONG | cl::DEVICE_NATIVE_VECTOR_WIDTH_LONG => room.give(&1u32),
        cl::DEVICE_PREFERRED_VECTOR_WIDTH_FLOAT | cl::DEVICE_NATIVE_VECTOR_WIDTH_FLOAT => room.give(&1u32),
        cl::DEVICE_PREFERRED_VECTOR_WIDTH_DOUBLE | cl::DEVICE_NATIVE_VECTOR_WIDTH_DOUBLE => {
            room.give(&u32::from(c.fp64))
        }
        cl::DEVICE_PREFERRED_VECTOR_WIDTH_HALF | cl::DEVICE_NATIVE_VECTOR_WIDTH_HALF => {
            room.give(&u32::from(c.fp16))
        }
        _ => return None,
    })
}

fn memory(device: &Device, name: u32, room: Room) -> Option<Result<()>> {
    let p = &device.profile;
    Some(match name {
        cl::DEVICE_GLOBAL_MEM_SIZE => room.give(&p.memory.bytes),
        cl::DEVICE_MAX_MEM_ALLOC_SIZE => room.give(&max_alloc(p)),
        cl::DEVICE_GLOBAL_MEM_CACHE_TYPE => room.give(&cl::READ_WRITE_CACHE),
        cl::DEVICE_GLOBAL_MEM_CACHE_SIZE => room.give(&p.cache.l2_bytes),
        cl::DEVICE_GLOBAL_MEM_CACHELINE_SIZE => room.give(&p.cache.line_bytes),
        cl::DEVICE_MAX_CONSTANT_BUFFER_SIZE => room.give(&max_alloc(p).min(1 << 31)),
        cl::DEVICE_MAX_CONSTANT_ARGS => room.give(&64u32),
        cl::DEVICE_LOCAL_MEM_TYPE => room.give(&cl::LOCAL),
        cl::DEVICE_LOCAL_MEM_SIZE => room.give(&p.local.group_bytes),
        cl::DEVICE_MAX_PARAMETER_SIZE => room.give(&4096usize),
        // In bits. Allocations are aligned to 256 bytes.
        cl::DEVICE_MEM_BASE_ADDR_ALIGN => room.give(&1024u32),
        cl::DEVICE_MIN_DATA_TYPE_ALIGN_SIZE => room.give(&128u32),
        cl::DEVICE_HOST_UNIFIED_MEMORY => room.give(&p.link.unified),
        _ => return None,
    })
}

/// Returns image limits.
fn images(_device: &Device, name: u32, room: Room) -> Option<Result<()>> {
    Some(match name {
        cl::DEVICE_IMAGE_SUPPORT => room.give(&true),
        cl::DEVICE_MAX_READ_IMAGE_ARGS => room.give(&128u32),
        cl::DEVICE_MAX_WRITE_IMAGE_ARGS | cl::DEVICE_MAX_READ_WRITE_IMAGE_ARGS => room.give(&64u32),
        cl::DEVICE_MAX_SAMPLERS => room.give(&16u32),
        cl::DEVICE_IMAGE_PITCH_ALIGNMENT | cl::DEVICE_IMAGE_BASE_ADDRESS_ALIGNMENT => {
            room.give(&(limits::PITCH_ALIGNMENT as u32))
        }
        cl::DEVICE_IMAGE2D_MAX_WIDTH | cl::DEVICE_IMAGE2D_MAX_HEIGHT => room.give(&limits::MAX_PLANE),
        cl::DEVICE_IMAGE3D_MAX_WIDTH | cl::DEVICE_IMAGE3D_MAX_HEIGHT | cl::DEVICE_IMAGE3D_MAX_DEPTH => {
            room.give(&limits::MAX_VOLUME)
        }
        cl::DEVICE_IMAGE_MAX_BUFFER_SIZE => room.give(&limits::MAX_BUFFER),
        cl::DEVICE_IMAGE_MAX_ARRAY_SIZE => room.give(&limits::MAX_LAYERS),
        _ => return None,
    })
}

/// Returns the maximum size of one allocation in bytes.
pub fn max_alloc(profile: &Profile) -> u64 {
    (profile.memory.bytes / 4).max(128 << 20).min(profile.memory.bytes)
}

/// Answers queries added after OpenCL 1.2. Optional features that are not listed here are not supported.
fn newer(device: &Device, name: u32, room: Room) -> Option<Result<()>> {
    let p = &device.profile;
    Some(match name {
        cl::DEVICE_NUMERIC_VERSION => room.give(&version(3, 0, 0)),
        cl::DEVICE_EXTENSIONS_WITH_VERSION => {
            let list: Vec<(u32, &str)> = offered(device).map(|e| (version(1, 0, 0), e)).collect();
            room.give(&list[..])
        }
        cl::DEVICE_OPENCL_C_ALL_VERSIONS => {
            let list = [(1, 0), (1, 1), (1, 2), (3, 0)].map(|(a, b)| (version(a, b, 0), "OpenCL C"));
            room.give(&list[..])
        }
        cl::DEVICE_OPENCL_C_NUMERIC_VERSION_KHR => room.give(&version(1, 2, 0)),
        cl::DEVICE_OPENCL_C_FEATURES => room.give(&features(p)[..]),
        cl::DEVICE_ILS_WITH_VERSION | cl::DEVICE_BUILT_IN_KERNELS_WITH_VERSION => room.give(&[0u8; 0][..]),
        cl::DEVICE_IL_VERSION => room.give(""),
        // No version of the official conformance tests has been passed; programs parse the date.
        cl::DEVICE_LATEST_CONFORMANCE_VERSION_PASSED => room.give("v0000-01-01-00"),
        cl::DEVICE_SVM_CAPABILITIES
        | cl::DEVICE_QUEUE_ON_DEVICE_PROPERTIES
        | cl::DEVICE_DEVICE_ENQUEUE_CAPABILITIES => room.give(&0u64),
        cl::DEVICE_QUEUE_ON_DEVICE_PREFERRED_SIZE
        | cl::DEVICE_QUEUE_ON_DEVICE_MAX_SIZE
        | cl::DEVICE_MAX_ON_DEVICE_QUEUES
        | cl::DEVICE_MAX_ON_DEVICE_EVENTS
        | cl::DEVICE_MAX_PIPE_ARGS
        | cl::DEVICE_PIPE_MAX_ACTIVE_RESERVATIONS
        | cl::DEVICE_PIPE_MAX_PACKET_SIZE
        | cl::DEVICE_PREFERRED_PLATFORM_ATOMIC_ALIGNMENT
        | cl::DEVICE_PREFERRED_GLOBAL_ATOMIC_ALIGNMENT
        | cl::DEVICE_PREFERRED_LOCAL_ATOMIC_ALIGNMENT => room.give(&0u32),
        cl::DEVICE_MAX_GLOBAL_VARIABLE_SIZE => room.give(&(64usize << 10)),
        cl::DEVICE_GLOBAL_VARIABLE_PREFERRED_TOTAL_SIZE => room.give(&(64usize << 10)),
        cl::DEVICE_MAX_NUM_SUB_GROUPS => {
            room.give(&if p.compute.subgroups { p.compute.max_group / p.compute.simd_width } else { 0 })
        }
        cl::DEVICE_SUB_GROUP_INDEPENDENT_FORWARD_PROGRESS => room.give(&false),
        cl::DEVICE_ATOMIC_MEMORY_CAPABILITIES | cl::DEVICE_ATOMIC_FENCE_CAPABILITIES => room.give(
            &(cl::DEVICE_ATOMIC_ORDER_RELAXED
                | cl::DEVICE_ATOMIC_ORDER_ACQ_REL
                | cl::DEVICE_ATOMIC_ORDER_SEQ_CST
                | cl::DEVICE_ATOMIC_SCOPE_WORK_GROUP
                | cl::DEVICE_ATOMIC_SCOPE_DEVICE),
        ),
        cl::DEVICE_NON_UNIFORM_WORK_GROUP_SUPPORT => room.give(&true),
        cl::DEVICE_WORK_GROUP_COLLECTIVE_FUNCTIONS_SUPPORT => room.give(&true),
        cl::DEVICE_GENERIC_ADDRESS_SPACE_SUPPORT => room.give(&true),
        cl::DEVICE_PIPE_SUPPORT => room.give(&false),
        cl::DEVICE_PREFERRED_WORK_GROUP_SIZE_MULTIPLE => room.give(&(p.compute.simd_width as usize)),
        _ => return None,
    })
}

/// Returns the supported optional features of OpenCL C 3.0.
fn features(profile: &Profile) -> Vec<(u32, &'static str)> {
    let c = &profile.compute;
    let list = [
        (true, "__opencl_c_3d_image_writes"),
        (true, "__opencl_c_atomic_order_acq_rel"),
        (true, "__opencl_c_atomic_order_seq_cst"),
        (true, "__opencl_c_atomic_scope_device"),
        (c.fp64, "__opencl_c_fp64"),
        (true, "__opencl_c_generic_address_space"),
        (true, "__opencl_c_images"),
        (true, "__opencl_c_int64"),
        (true, "__opencl_c_program_scope_global_variables"),
        (true, "__opencl_c_read_write_images"),
        (c.subgroups, "__opencl_c_subgroups"),
        (true, "__opencl_c_work_group_collective_functions"),
    ];
    list.iter().filter(|(has, _)| *has).map(|(_, name)| (version(3, 0, 0), *name)).collect()
}
