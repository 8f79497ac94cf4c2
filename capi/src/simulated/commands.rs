//! Commands of the simulated GPU: matrix multiplication, copies and fills.

use super::machine::{QUEUE, allocate, device_address, free, machine, program, say};
use crate::edge::{flag, value};
use crate::machine::state::Machine;
use crate::pointers;
use crate::status::{Failure, NetclStatus, Result};
use aethercl::machine::{Binding, KernelLaunch, Packet};
use aethercl::{Access, NdRange};
use std::ffi::{c_int, c_ulonglong};
use std::sync::Arc;

/// Work-items per group along each axis.
const TILE: u64 = 8;

/// Computes `c` (m, n) = `a` (m, k) · `b` (k, n). `element` is the element size in bytes: 4 for float, 8 for double.
pub const NETCL_SIMULATED_MATRIX_MULTIPLY: c_int = 1;
/// Copies `bytes` bytes from `a` to `c`.
pub const NETCL_SIMULATED_COPY: c_int = 2;
/// Sets `bytes` bytes at `c` to the byte `element`.
pub const NETCL_SIMULATED_FILL: c_int = 3;

/// A command for the simulated GPU. Only the fields that belong to the operation are read.
#[repr(C)]
#[allow(non_camel_case_types)] // its name in C
#[derive(Clone, Copy, Debug, Default)]
pub struct netcl_simulated_command {
    /// `NETCL_SIMULATED_MATRIX_MULTIPLY`, `NETCL_SIMULATED_COPY` or `NETCL_SIMULATED_FILL`.
    pub operation: c_int,
    /// Size of an element in bytes, or the byte of a fill.
    pub element: c_int,
    /// Address of the first input, from `simulated_kernel_allocate`.
    pub a: c_ulonglong,
    /// Address of the second input.
    pub b: c_ulonglong,
    /// Address of the result.
    pub c: c_ulonglong,
    /// Rows of the result.
    pub m: c_ulonglong,
    /// Columns of the result.
    pub n: c_ulonglong,
    /// Columns of `a` and rows of `b`.
    pub k: c_ulonglong,
    /// Size of a copy or fill in bytes.
    pub bytes: c_ulonglong,
}

/// Enqueues a command, rings the doorbell, and waits until the command is complete. Returns 1, or 0 on failure.
///
/// # Safety
/// `command` points to a command.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn submit_command(gpu_index: c_int, command: *const netcl_simulated_command) -> c_int {
    flag("submit_command", || {
        // SAFETY: guaranteed by this function's caller.
        let given = unsafe { pointers::slice("command", command, 1) }?;
        say(|| format!("submit_command: GPU {gpu_index}, operation {}", given[0].operation));
        submit(&*machine()?, &given[0])
    })
}

fn submit(machine: &Machine, command: &netcl_simulated_command) -> Result<()> {
    let fence = match command.operation {
        NETCL_SIMULATED_MATRIX_MULTIPLY => {
            let work = product(machine, command)?;
            machine.with(|gpu| gpu.launch(QUEUE, Arc::new(work), Some(machine.keeper())))?
        }
        NETCL_SIMULATED_COPY => {
            let from = device_address(command.a, command.bytes)?;
            let packet =
                Packet::Copy { to: device_address(command.c, command.bytes)?, from, bytes: command.bytes };
            machine.with(|gpu| gpu.submit(QUEUE, packet, None))?
        }
        NETCL_SIMULATED_FILL => {
            let to = device_address(command.c, command.bytes)?;
            let byte = u8::try_from(command.element).map_err(|_| {
                Failure::argument(format!(
                    "cannot fill with {}; expected a byte from 0 to 255",
                    command.element
                ))
            })?;
            let packet = Packet::Fill { to, bytes: command.bytes, pattern: [byte; 16], length: 1 };
            machine.with(|gpu| gpu.submit(QUEUE, packet, None))?
        }
        other => return Err(Failure::argument(format!("operation {other}, expected 1 to 3"))),
    };
    machine.with(|gpu| gpu.wait(fence))?;
    Ok(())
}

/// Builds the launch of a matrix product.
fn product(machine: &Machine, command: &netcl_simulated_command) -> Result<KernelLaunch> {
    let netcl_simulated_command { a, b, c, m, n, k, element, .. } = *command;
    let kernel = match element {
        4 => "matrix_multiply_f32",
        8 => "matrix_multiply_f64",
        _ => return Err(Failure::argument(format!("elements have {element} bytes, expected 4 or 8"))),
    };
    if m == 0 || n == 0 || k == 0 {
        return Err(Failure::argument(format!(
            "cannot multiply ({m}, {k}) and ({k}, {n}): every size must be at least 1"
        )));
    }
    let size = |rows: u64, columns: u64| {
        rows.checked_mul(columns).and_then(|n| n.checked_mul(element as u64)).filter(|n| *n <= 1 << 40)
    };
    let (Some(of_a), Some(of_b), Some(of_c)) = (size(m, k), size(k, n), size(m, n)) else {
        return Err(Failure::argument(format!("the product of ({m}, {k}) and ({k}, {n}) is too large")));
    };
    let buffer = |host, bytes, access| -> Result<Binding> {
        Ok(Binding::Buffer { address: device_address(host, bytes)?, bytes, access })
    };
    let number = |n: u64| Binding::Scalar(n.to_le_bytes().to_vec());
    let bindings = vec![
        buffer(a, of_a, Access::Read)?,
        buffer(b, of_b, Access::Read)?,
        buffer(c, of_c, Access::Write)?,
        number(m),
        number(n),
        number(k),
    ];
    let global = [n.next_multiple_of(TILE), m.next_multiple_of(TILE)];
    let range = NdRange::plane(global, [TILE, TILE]);
    Ok(KernelLaunch::new(&program()?, kernel, bindings, range, machine.launch.clone()))
}

/// Multiplies two matrices on the simulated GPU. `shape_a` and `shape_b` contain rows and columns. `size_a` and `size_b` are sizes in
/// bytes; they determine whether the elements are float or double. Returns the address of the result in the program's memory, or 0 on
/// failure. Read the result with `simulated_kernel_read` or through the address, and free it with `simulated_kernel_free`.
///
/// # Safety
/// `shape_a` and `shape_b` point to two numbers each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simulated_matrix_multiply(
    gpu_index: c_int,
    address_a: c_ulonglong,
    address_b: c_ulonglong,
    size_a: usize,
    size_b: usize,
    shape_a: *const c_int,
    shape_b: *const c_int,
) -> c_ulonglong {
    value("simulated_matrix_multiply", 0, || {
        // SAFETY: guaranteed by this function's caller.
        let (of_a, of_b) =
            unsafe { (pointers::slice("shape_a", shape_a, 2)?, pointers::slice("shape_b", shape_b, 2)?) };
        let ([m, k], [rows, n]) = (axes(of_a)?, axes(of_b)?);
        if k != rows {
            let message =
                format!("cannot multiply shapes {of_a:?} and {of_b:?}: {k} columns, but {rows} rows");
            return Err(Failure::new(NetclStatus::Shape, message));
        }
        let element = [8, 4].into_iter().find(|element| {
            let is = |size: usize, rows: u64, columns: u64| rows * columns * element == size as u64;
            is(size_a, m, k) && is(size_b, k, n)
        });
        let element = element.ok_or_else(|| {
            Failure::argument(format!(
                "sizes {size_a} and {size_b} do not match shapes {of_a:?} and {of_b:?}; elements have 4 or 8 bytes"
            ))
        })?;
        say(|| {
            format!(
                "simulated_matrix_multiply: GPU {gpu_index}, {of_a:?} of {size_a} bytes times {of_b:?} of {size_b} bytes"
            )
        });
        let machine = machine()?;
        let bytes = m.checked_mul(n * element).and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| Failure::argument("the product is too large for this system"))?;
        let c = allocate(&machine, bytes, "product")?;
        let command = netcl_simulated_command {
            operation: NETCL_SIMULATED_MATRIX_MULTIPLY,
            element: element as c_int,
            a: address_a,
            b: address_b,
            c: c.host,
            m,
            n,
            k,
            bytes: 0,
        };
        if let Err(failure) = submit(&machine, &command) {
            free(&machine, c.host)?;
            return Err(failure);
        }
        say(|| {
            format!(
                "simulated_matrix_multiply: [{m}, {n}] of {bytes} bytes at {:#x}, device address {:#x}",
                c.host, c.device
            )
        });
        Ok(c.host)
    })
}

/// Converts rows and columns, both at least 1.
fn axes(shape: &[c_int]) -> Result<[u64; 2]> {
    match shape {
        [rows, columns] if *rows > 0 && *columns > 0 => Ok([*rows as u64, *columns as u64]),
        _ => Err(Failure::argument(format!(
            "a matrix has shape {shape:?}; rows and columns must be at least 1"
        ))),
    }
}
