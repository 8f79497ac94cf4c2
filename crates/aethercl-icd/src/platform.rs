//! Platform and device calls.

use crate::answer::{self, Room};
use crate::cl;
use crate::cl::Result;
use crate::device::{self, Device, devices, platform};
use crate::raw::{Handle, In, Out};
use crate::registry;

/// `clGetPlatformIDs`.
pub fn get_platform_ids(room: u32, to: Out<Handle>, count: Out<u32>) -> Result<()> {
    answer::handles(&[platform()], room, to, count)
}

/// `clGetPlatformInfo`.
pub fn get_platform_info(handle: Handle, name: u32, room: Room) -> Result<()> {
    device::platform_info(handle, name, room)
}

/// Returns the devices of the given types (bit mask).
///
/// # Errors
/// `CL_INVALID_DEVICE_TYPE` for an empty or unknown mask, `CL_DEVICE_NOT_FOUND` if no device matches.
pub fn of_type(types: u64) -> Result<Vec<Handle>> {
    let known = cl::DEVICE_TYPE_DEFAULT
        | cl::DEVICE_TYPE_CPU
        | cl::DEVICE_TYPE_GPU
        | cl::DEVICE_TYPE_ACCELERATOR
        | cl::DEVICE_TYPE_CUSTOM;
    if types == 0 || (types != cl::DEVICE_TYPE_ALL && types & !known != 0) {
        return Err(cl::INVALID_DEVICE_TYPE);
    }
    let all: Vec<Handle> = devices().iter().map(|d| d.handle()).collect();
    if types & cl::DEVICE_TYPE_GPU != 0 {
        Ok(all)
    } else if types & cl::DEVICE_TYPE_DEFAULT != 0 {
        Ok(all[..1].to_vec())
    } else {
        Err(cl::DEVICE_NOT_FOUND)
    }
}

/// `clGetDeviceIDs`.
pub fn get_device_ids(handle: Handle, types: u64, room: u32, to: Out<Handle>, count: Out<u32>) -> Result<()> {
    if handle != platform() && handle != Handle::NULL {
        return Err(cl::INVALID_PLATFORM);
    }
    answer::handles(&of_type(types)?, room, to, count)
}

/// `clGetDeviceInfo`.
pub fn get_device_info(handle: Handle, name: u32, room: Room) -> Result<()> {
    device::device_info(handle, name, room)
}

/// `clRetainDevice` and `clReleaseDevice`: root devices are not counted.
pub fn retain_device(handle: Handle) -> Result<()> {
    registry::get::<Device>(handle).map(|_| ())
}

/// `clCreateSubDevices`: no device can be partitioned.
pub fn create_sub_devices(
    handle: Handle,
    _properties: In<usize>,
    _room: u32,
    _to: Out<Handle>,
    _count: Out<u32>,
) -> Result<()> {
    registry::get::<Device>(handle)?;
    Err(cl::INVALID_VALUE)
}

/// `clGetDeviceAndHostTimer`: both values are the simulated clock.
pub fn get_device_and_host_timer(handle: Handle, device: Out<u64>, host: Out<u64>) -> Result<()> {
    let now = registry::get::<Device>(handle)?.now();
    if device.is_null() || host.is_null() {
        return Err(cl::INVALID_VALUE);
    }
    device.set(now);
    host.set(now);
    Ok(())
}

/// `clGetHostTimer`.
pub fn get_host_timer(handle: Handle, host: Out<u64>) -> Result<()> {
    let now = registry::get::<Device>(handle)?.now();
    if host.is_null() {
        return Err(cl::INVALID_VALUE);
    }
    host.set(now);
    Ok(())
}

/// `clUnloadCompiler`.
pub fn unload_compiler() -> Result<()> {
    Ok(())
}

/// `clUnloadPlatformCompiler`.
pub fn unload_platform_compiler(handle: Handle) -> Result<()> {
    if handle == platform() { Ok(()) } else { Err(cl::INVALID_PLATFORM) }
}
