//! Registers, and the window that maps registers and rings into the program's memory.

use super::state::{MACHINES, aethercl_machine};
use crate::edge::edge;
use crate::pointers;
use crate::status::{Failure, NetclStatus};
use aethercl::machine::window::RINGS;
use std::ffi::c_void;

/// Reads a register. docs/aethercl.md lists the registers.
///
/// # Safety
/// `value` points to space for the register's value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aethercl_register_read(
    machine: *mut aethercl_machine,
    offset: u32,
    value: *mut u32,
) -> NetclStatus {
    edge("aethercl_register_read", || {
        pointers::check_out("value", value)?;
        let found = MACHINES.get(machine)?.with(|gpu| Ok(gpu.read_register(offset)))?;
        // SAFETY: guaranteed by this function's caller.
        unsafe { pointers::put("value", value, found) }
    })
}

/// Writes a register. Read-only registers keep their value.
#[unsafe(no_mangle)]
pub extern "C" fn aethercl_register_write(
    machine: *mut aethercl_machine,
    offset: u32,
    value: u32,
) -> NetclStatus {
    edge("aethercl_register_write", || {
        MACHINES.get(machine)?.with(|gpu| {
            gpu.write_register(offset, value);
            Ok(())
        })
    })
}

/// Location and layout of the register window.
#[repr(C)]
#[allow(non_camel_case_types)] // its name in C
pub struct aethercl_mmio {
    /// The registers, 32 bits each. The register at offset `o` is `registers[o / 4]`.
    pub registers: *mut u32,
    /// Size of the window in bytes.
    pub bytes: usize,
    /// Offset in bytes from the start of the window to the ring of queue 0.
    pub rings: usize,
    /// Distance in bytes between the rings of consecutive queues.
    pub ring_stride: usize,
}

/// Maps the machine's registers and rings into the program's memory. A thread of the machine then polls them. A program can write packets
/// into a ring and the ring's tail into DOORBELL, without calling other functions. It then sees FENCE advance and IRQ_STATUS set; writing
/// IRQ_CLEAR clears the status. Access the window in 32-bit words, either volatile or as C11 atomics, and write the packets before the
/// doorbell. Mapping again returns the same window. The window is valid until `aethercl_mmio_unmap` or `aethercl_close`.
///
/// # Safety
/// `window` points to space for the description.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aethercl_mmio_map(
    machine: *mut aethercl_machine,
    window: *mut aethercl_mmio,
) -> NetclStatus {
    edge("aethercl_mmio_map", || {
        pointers::check_out("window", window)?;
        let machine = MACHINES.get(machine)?;
        let found = {
            let mut gpu = machine.gpu();
            let mapped = gpu.map_window();
            let words = mapped.words();
            aethercl_mmio {
                registers: words.as_ptr().cast::<u32>().cast_mut(),
                bytes: 4 * words.len(),
                rings: RINGS,
                ring_stride: mapped.stride(),
            }
        };
        machine.poll();
        // SAFETY: guaranteed by this function's caller.
        unsafe { pointers::put("window", window, found) }
    })
}

/// Unmaps the window. The program must not access it afterwards.
#[unsafe(no_mangle)]
pub extern "C" fn aethercl_mmio_unmap(machine: *mut aethercl_machine) -> NetclStatus {
    edge("aethercl_mmio_unmap", || {
        let machine = MACHINES.get(machine)?;
        machine.stop_polling();
        machine.gpu().unmap_window();
        Ok(())
    })
}

/// Allocates `bytes` bytes of host memory that the copy engines reach at the bus address `bus`, for packets that a program writes itself.
/// The memory contains a copy of `source`, or zeros if `source` is NULL. It is valid until `aethercl_unpin`.
///
/// # Safety
/// `source` points to `bytes` bytes or is NULL; `bus` points to space for an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aethercl_pin(
    machine: *mut aethercl_machine,
    source: *const c_void,
    bytes: usize,
    bus: *mut u64,
) -> NetclStatus {
    edge("aethercl_pin", || {
        pointers::check_out("bus", bus)?;
        let machine = MACHINES.get(machine)?;
        let mut data = Vec::new();
        // Checked because a system may promise more memory than it has.
        let there = netcl::device::available_memory().unwrap_or(u64::MAX);
        if bytes as u64 > there || data.try_reserve_exact(bytes).is_err() {
            return Err(Failure::new(
                NetclStatus::Memory,
                format!("cannot pin {bytes} bytes: not enough host memory is available"),
            ));
        }
        if source.is_null() {
            data.resize(bytes, 0);
        } else {
            // SAFETY: guaranteed by this function's caller.
            data.extend_from_slice(unsafe { pointers::slice("source", source.cast::<u8>(), bytes) }?);
        }
        let at = machine.with(|gpu| Ok(gpu.pin(data)))?;
        // SAFETY: likewise.
        unsafe { pointers::put("bus", bus, at) }
    })
}

/// Frees pinned memory. Its first `bytes` bytes are copied to `destination`, which may be NULL.
///
/// # Safety
/// `destination` points to space for `bytes` bytes or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aethercl_unpin(
    machine: *mut aethercl_machine,
    bus: u64,
    destination: *mut c_void,
    bytes: usize,
) -> NetclStatus {
    edge("aethercl_unpin", || {
        let machine = MACHINES.get(machine)?;
        let data = machine.with(|gpu| Ok(gpu.unpin(bus)))?;
        let data = data.ok_or_else(|| Failure::argument(format!("nothing is pinned at {bus:#x}")))?;
        if destination.is_null() {
            return Ok(());
        }
        let there = data.len();
        let wanted = data.get(..bytes).ok_or_else(|| {
            Failure::argument(format!("cannot copy {bytes} bytes from pinned memory of {there} bytes"))
        })?;
        // SAFETY: guaranteed by this function's caller.
        unsafe { pointers::slice_mut("destination", destination.cast::<u8>(), bytes) }?
            .copy_from_slice(wanted);
        Ok(())
    })
}
