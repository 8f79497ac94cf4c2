//! Results of launches: findings, counters, times, output of `printf`, and the timeline.

use super::state::{MACHINES, aethercl_machine, lock};
use crate::edge::edge;
use crate::pointers;
use crate::status::{Failure, NetclStatus};
use aethercl::model::Bound;
use std::ffi::{CStr, c_char};

/// A finding of the checks at one place of a kernel. Its strings are valid until the findings are cleared or the machine is closed.
#[repr(C)]
#[allow(non_camel_case_types)] // its name in C
pub struct aethercl_finding {
    /// Kind of finding: `race-in-group`, `read-outside`, `uninitialized`, …
    pub kind: *const c_char,
    /// Name of the kernel.
    pub kernel: *const c_char,
    /// Line in the kernel source, starting at 1.
    pub line: u32,
    /// Column, starting at 1.
    pub column: u32,
    /// Number of occurrences at this place.
    pub count: u64,
    /// Description: what happened, the source line with a caret, and the work-items.
    pub text: *const c_char,
}

/// Returns the number of findings since the last `aethercl_findings_clear`.
///
/// # Safety
/// `count` points to space for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aethercl_finding_count(
    machine: *mut aethercl_machine,
    count: *mut usize,
) -> NetclStatus {
    edge("aethercl_finding_count", || {
        let machine = MACHINES.get(machine)?;
        let there = lock(&machine.mail.left).findings.len();
        // SAFETY: guaranteed by this function's caller.
        unsafe { pointers::put("count", count, there) }
    })
}

/// Returns a finding by its index, which starts at 0.
///
/// # Safety
/// `finding` points to space for the finding.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aethercl_finding_at(
    machine: *mut aethercl_machine,
    index: usize,
    finding: *mut aethercl_finding,
) -> NetclStatus {
    edge("aethercl_finding_at", || {
        let machine = MACHINES.get(machine)?;
        let left = lock(&machine.mail.left);
        let there = left.findings.len();
        let found = left.findings.get(index);
        let found = found
            .ok_or_else(|| Failure::argument(format!("finding {index} is out of range; {there} exist")))?;
        let out = aethercl_finding {
            kind: found.kind.as_ptr(),
            kernel: found.kernel.as_ptr(),
            line: found.finding.line,
            column: found.finding.column,
            count: found.finding.count,
            text: found.text.as_ptr(),
        };
        // SAFETY: guaranteed by this function's caller.
        unsafe { pointers::put("finding", finding, out) }
    })
}

/// Clears all findings.
#[unsafe(no_mangle)]
pub extern "C" fn aethercl_findings_clear(machine: *mut aethercl_machine) -> NetclStatus {
    edge("aethercl_findings_clear", || {
        let machine = MACHINES.get(machine)?;
        lock(&machine.mail.left).findings.clear();
        Ok(())
    })
}

/// Counters of a launch, as the hardware would report them, and the modeled time.
#[repr(C)]
#[allow(non_camel_case_types)] // its name in C
#[derive(Default)]
pub struct aethercl_counters {
    /// Number of work-groups.
    pub groups: u64,
    /// Number of work-items.
    pub items: u64,
    /// Instructions issued by SIMD groups.
    pub issued: u64,
    /// Masked-off lanes of these instructions.
    pub lanes_idle: u64,
    /// Load requests to global memory.
    pub global_load_requests: u64,
    /// Bytes requested by these loads.
    pub global_load_bytes: u64,
    /// Sectors of 32 bytes moved for these loads.
    pub global_load_sectors: u64,
    /// Store requests to global memory.
    pub global_store_requests: u64,
    /// Bytes stored.
    pub global_store_bytes: u64,
    /// Sectors of 32 bytes moved for these stores.
    pub global_store_sectors: u64,
    /// Requests to local memory.
    pub local_requests: u64,
    /// Passes through the banks of local memory. Without bank conflicts, equal to `local_requests`.
    pub local_passes: u64,
    /// Local memory of a work-group in bytes.
    pub local_bytes: u64,
    /// 32-bit registers per work-item.
    pub registers: u32,
    /// Modeled time on the compute units in ns.
    pub ns: u64,
    /// Limiting resource, such as `device memory`.
    pub bound: *const c_char,
}

fn bound_name(bound: Bound) -> &'static CStr {
    match bound {
        Bound::Issue => c"issue slots",
        Bound::Float => c"f32 arithmetic",
        Bound::Double => c"f64 arithmetic",
        Bound::Integer => c"integer arithmetic",
        Bound::Special => c"special functions",
        Bound::Local => c"local memory",
        Bound::L1 => c"L1 cache",
        Bound::L2 => c"L2 cache",
        Bound::Dram => c"device memory",
        Bound::Atomics => c"atomics",
        Bound::Latency => c"latency",
        Bound::Dispatch => c"group dispatch",
    }
}

/// Returns the counters of the launch that completed last.
///
/// # Safety
/// `counters` points to space for the counters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aethercl_counters_last(
    machine: *mut aethercl_machine,
    counters: *mut aethercl_counters,
) -> NetclStatus {
    edge("aethercl_counters_last", || {
        pointers::check_out("counters", counters)?;
        let machine = MACHINES.get(machine)?;
        let left = lock(&machine.mail.left);
        let Some((Some(c), estimate)) = &left.last else {
            return Err(Failure::argument("no launch has completed yet"));
        };
        let bound = estimate.as_ref().map_or(c"", |estimate| bound_name(estimate.bound()));
        let out = aethercl_counters {
            groups: c.groups,
            items: c.items,
            issued: c.issued,
            lanes_idle: c.lanes_idle,
            global_load_requests: c.global_load.requests,
            global_load_bytes: c.global_load.bytes,
            global_load_sectors: c.global_load.sectors,
            global_store_requests: c.global_store.requests,
            global_store_bytes: c.global_store.bytes,
            global_store_sectors: c.global_store.sectors,
            local_requests: c.local_requests,
            local_passes: c.local_passes,
            local_bytes: c.local_bytes,
            registers: c.registers,
            ns: estimate.as_ref().map_or(0, |estimate| estimate.ns),
            bound: bound.as_ptr(),
        };
        // SAFETY: guaranteed by this function's caller.
        unsafe { pointers::put("counters", counters, out) }
    })
}

/// Returns the `printf` output of kernels since the last call. `room` is the size of `text` in bytes, including the terminating zero.
/// `length` receives the length without the zero. The output is consumed if it fits. If `text` is NULL, only the length is returned.
///
/// # Safety
/// `text` points to space for `room` bytes or is NULL; `length` points to space for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aethercl_printed(
    machine: *mut aethercl_machine,
    text: *mut c_char,
    room: usize,
    length: *mut usize,
) -> NetclStatus {
    edge("aethercl_printed", || {
        let machine = MACHINES.get(machine)?;
        let mut left = lock(&machine.mail.left);
        // SAFETY: guaranteed by this function's caller.
        unsafe { pointers::put("length", length, left.printed.len()) }?;
        if text.is_null() {
            return Ok(());
        }
        if room <= left.printed.len() {
            let needed = left.printed.len() + 1;
            return Err(Failure::argument(format!("the buffer has {room} bytes, {needed} are needed")));
        }
        // SAFETY: likewise.
        let to = unsafe { pointers::slice_mut("text", text.cast::<u8>(), room) }?;
        to[..left.printed.len()].copy_from_slice(left.printed.as_bytes());
        to[left.printed.len()] = 0;
        left.printed.clear();
        Ok(())
    })
}

/// Writes the timeline so far to a file for ui.perfetto.dev. The machine must have been opened with a timeline.
///
/// # Safety
/// `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aethercl_timeline(
    machine: *mut aethercl_machine,
    path: *const c_char,
) -> NetclStatus {
    edge("aethercl_timeline", || {
        // SAFETY: guaranteed by this function's caller.
        let path = unsafe { pointers::text("path", path) }?;
        let machine = MACHINES.get(machine)?;
        let json = machine.gpu().timeline().map(aethercl::machine::Timeline::json);
        let json = json.ok_or_else(|| {
            Failure::argument(
                "the machine does not have a timeline; set aethercl_options.timeline when opening it",
            )
        })?;
        std::fs::write(path, json)
            .map_err(|e| Failure::new(NetclStatus::Io, format!("cannot write {path}: {e}")))
    })
}
