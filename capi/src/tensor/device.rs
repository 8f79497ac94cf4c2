//! Opening and closing devices.

use super::state::{DEVICES, begin_no_grad, end_no_grad, netcl_device};
use crate::edge::edge;
use crate::pointers;
use crate::status::{Failure, NetclStatus};
use netcl::device::{Device, Settings};
use std::ffi::c_char;

/// Opens a device: `auto`, `sim`, `sim:<profile>`, `<platform>:<number>` or a number. NULL means `auto`.
///
/// # Safety
/// `name` is a string or NULL; `device` points to space for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_device_open(
    name: *const c_char,
    device: *mut *mut netcl_device,
) -> NetclStatus {
    edge("netcl_device_open", || {
        pointers::check_out("device", device)?;
        // SAFETY: guaranteed by this function's caller.
        let name = unsafe { pointers::text_or_none("name", name) }?.unwrap_or("auto");
        let opened = Device::open(name, &Settings::from_env())?;
        // SAFETY: likewise.
        unsafe { pointers::put("device", device, DEVICES.insert(opened)?) }
    })
}

/// Closes a device's handle. The device stays open until its last tensor is freed.
#[unsafe(no_mangle)]
pub extern "C" fn netcl_device_close(device: *mut netcl_device) -> NetclStatus {
    edge("netcl_device_close", || DEVICES.remove(device).map(|_| ()))
}

/// Waits until the device has finished all submitted work. Returns the error if any of that work failed.
#[unsafe(no_mangle)]
pub extern "C" fn netcl_device_finish(device: *mut netcl_device) -> NetclStatus {
    edge("netcl_device_finish", || Ok(DEVICES.get(device)?.finish()?))
}

/// Writes the name, vendor and driver of a device to `text`, on one line. `room` is the size of `text` in bytes, including the terminating
/// zero. `length` receives the length without the zero. If `text` is NULL, only the length is returned.
///
/// # Safety
/// `text` points to space for `room` bytes or is NULL; `length` points to space for a number or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_device_describe(
    device: *mut netcl_device,
    text: *mut c_char,
    room: usize,
    length: *mut usize,
) -> NetclStatus {
    edge("netcl_device_describe", || {
        let device = DEVICES.get(device)?;
        let c = device.capabilities();
        let line = format!("{}: {}, {}, driver {}", c.id, c.name, c.vendor, c.driver_version);
        // SAFETY: guaranteed by this function's caller.
        unsafe { pointers::hand_out(&line, text, room, length) }
    })
}

/// Stops recording operations of this thread for gradients, until `netcl_no_grad_end`. Scopes can be nested.
#[unsafe(no_mangle)]
pub extern "C" fn netcl_no_grad_begin() -> NetclStatus {
    edge("netcl_no_grad_begin", || {
        begin_no_grad();
        Ok(())
    })
}

/// Ends the innermost scope that `netcl_no_grad_begin` started on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn netcl_no_grad_end() -> NetclStatus {
    edge("netcl_no_grad_end", || match end_no_grad() {
        true => Ok(()),
        false => Err(Failure::argument("no netcl_no_grad_begin is active on this thread")),
    })
}
