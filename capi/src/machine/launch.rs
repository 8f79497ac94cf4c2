//! Kernels: building a program from source, and launching it with a packet in a queue.

use super::state::{MACHINES, Machine, aethercl_fence, aethercl_machine, tell};
use crate::edge::edge;
use crate::handles::Table;
use crate::pointers;
use crate::status::{Failure, NetclStatus, Result};
use aethercl::machine::{Binding, KernelLaunch};
use aethercl::{Access, Includes, NdRange, Program, Source};
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

static PROGRAMS: Table<Arc<Program>> = Table::new("program", 0xa2);

/// A compiled program.
#[allow(non_camel_case_types)] // its name in C
pub struct aethercl_program(());

/// A buffer that the kernel reads and writes, given by `address` and `bytes`.
pub const AETHERCL_BUFFER: c_int = 0;
/// A buffer that the kernel only reads, given by `address` and `bytes`. A store to it is a finding.
pub const AETHERCL_BUFFER_READ: c_int = 1;
/// A scalar or vector of `bytes` bytes at `data`.
pub const AETHERCL_VALUE: c_int = 2;
/// Local memory of `bytes` bytes.
pub const AETHERCL_LOCAL: c_int = 3;

/// An argument of a kernel.
#[repr(C)]
#[allow(non_camel_case_types)] // its name in C
pub struct aethercl_argument {
    /// `AETHERCL_BUFFER`, `AETHERCL_BUFFER_READ`, `AETHERCL_VALUE` or `AETHERCL_LOCAL`.
    pub kind: c_int,
    /// Device address of a buffer.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Pointer to a value.
    pub data: *const c_void,
}

/// Compiles OpenCL C source. If this fails, `netcl_last_error()` contains the compiler's messages. `options` (`-D NAME=1`, …) may be NULL.
///
/// # Safety
/// `text` is a string, `options` a string or NULL; `program` points to space for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aethercl_build(
    text: *const c_char,
    options: *const c_char,
    program: *mut *mut aethercl_program,
) -> NetclStatus {
    edge("aethercl_build", || {
        pointers::check_out("program", program)?;
        // SAFETY: guaranteed by this function's caller.
        let (text, options) =
            unsafe { (pointers::text("text", text)?, pointers::text_or_none("options", options)?) };
        let built = build(text, options.unwrap_or(""))?;
        // SAFETY: likewise.
        unsafe { pointers::put("program", program, PROGRAMS.insert(built)?) }
    })
}

/// Compiles a program from source.
pub fn build(text: &str, options: &str) -> Result<Arc<Program>> {
    let source = Source { name: "kernel.cl", text };
    let built = Program::build(&source, options, &Includes::none());
    built.map(Arc::new).map_err(|e| Failure::new(NetclStatus::Build, e.to_string()))
}

/// Frees a program. Launches that are already enqueued still run.
#[unsafe(no_mangle)]
pub extern "C" fn aethercl_program_free(program: *mut aethercl_program) -> NetclStatus {
    edge("aethercl_program_free", || PROGRAMS.remove(program).map(|_| ()))
}

fn bindings(arguments: &[aethercl_argument]) -> Result<Vec<Binding>> {
    let binding = |given: &aethercl_argument| {
        let buffer = |access| Binding::Buffer { address: given.address, bytes: given.bytes, access };
        let bytes = usize::try_from(given.bytes).unwrap_or(usize::MAX);
        match given.kind {
            AETHERCL_BUFFER => Ok(buffer(Access::Write)),
            AETHERCL_BUFFER_READ => Ok(buffer(Access::Read)),
            // The largest vector has 16 elements of 8 bytes. A struct can be larger, but not this large.
            AETHERCL_VALUE if bytes <= 4096 => {
                // SAFETY: guaranteed by the caller of the launch.
                let data = unsafe { pointers::slice("data of a value", given.data.cast::<u8>(), bytes) }?;
                Ok(Binding::Scalar(data.to_vec()))
            }
            AETHERCL_VALUE => {
                Err(Failure::argument(format!("a value of {bytes} bytes, expected at most 4096")))
            }
            AETHERCL_LOCAL => Ok(Binding::Local(bytes)),
            kind => Err(Failure::argument(format!("an argument of kind {kind}, expected 0 to 3"))),
        }
    };
    arguments.iter().map(binding).collect()
}

/// A checked launch, ready to be enqueued.
struct CheckedLaunch {
    machine: Arc<Machine>,
    work: Arc<KernelLaunch>,
}

/// Builds a launch from a program's pointers.
///
/// # Safety
/// The same as for `aethercl_launch`.
unsafe fn given(
    machine: *mut aethercl_machine,
    program: *mut aethercl_program,
    kernel: *const c_char,
    (arguments, count): (*const aethercl_argument, usize),
    (global, local): (*const u64, *const u64),
) -> Result<CheckedLaunch> {
    let (machine, program) = (MACHINES.get(machine)?, PROGRAMS.get(program)?);
    // SAFETY: guaranteed by the caller.
    let (kernel, arguments) =
        unsafe { (pointers::text("kernel", kernel)?, pointers::slice("arguments", arguments, count)?) };
    // SAFETY: likewise.
    let (global, local) =
        unsafe { (pointers::slice("global", global, 3)?, pointers::slice("local", local, 3)?) };
    if program.kernel(kernel).is_none() {
        let names: Vec<&str> = program.kernels().iter().map(|k| k.name.as_str()).collect();
        return Err(Failure::argument(format!(
            "the program does not have a kernel {kernel}; its kernels are {}",
            names.join(", ")
        )));
    }
    let of = |sizes: &[u64]| [sizes[0], sizes[1], sizes[2]];
    let range = NdRange { global: of(global), local: of(local), offset: [0; 3], dimensions: 3 };
    let most = u64::from(machine.gpu().profile().compute.max_group);
    let items = range.local.iter().try_fold(1u64, |product, n| product.checked_mul(*n));
    if items.is_none_or(|items| items == 0 || items > most) {
        let message = format!("a group has {local:?} work-items, expected 1 to {most}");
        return Err(Failure::argument(message));
    }
    let options = machine.launch.clone();
    let work = KernelLaunch::new(&program, kernel, bindings(arguments)?, range, options).timed(true);
    Ok(CheckedLaunch { machine, work: Arc::new(work) })
}

/// Enqueues the launch of a kernel: `global` work-items in groups of `local`. Both are arrays of three sizes, with 1 for unused dimensions.
/// A finding of the checks does not make the launch fail; see `aethercl_finding_count`. `fence` may be NULL.
///
/// # Safety
/// `kernel` is a string; `arguments` has `count` elements; `global` and `local` have three elements each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aethercl_launch(
    machine: *mut aethercl_machine,
    queue: u32,
    program: *mut aethercl_program,
    kernel: *const c_char,
    arguments: *const aethercl_argument,
    count: usize,
    global: *const u64,
    local: *const u64,
    fence: *mut aethercl_fence,
) -> NetclStatus {
    edge("aethercl_launch", || {
        // SAFETY: guaranteed by this function's caller.
        let CheckedLaunch { machine, work } =
            unsafe { given(machine, program, kernel, (arguments, count), (global, local)) }?;
        let keeper = machine.keeper();
        let made = machine.with(|gpu| gpu.launch(queue as usize, work, Some(keeper)))?;
        // SAFETY: likewise.
        unsafe { tell(fence, made) }
    })
}

/// Writes a launch descriptor to host memory, for programs that write LAUNCH packets themselves. `descriptor` receives the address for the
/// packet. Each descriptor can be used for one launch.
///
/// # Safety
/// The same as for `aethercl_launch`; `descriptor` points to space for an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aethercl_describe(
    machine: *mut aethercl_machine,
    program: *mut aethercl_program,
    kernel: *const c_char,
    arguments: *const aethercl_argument,
    count: usize,
    global: *const u64,
    local: *const u64,
    descriptor: *mut u64,
) -> NetclStatus {
    edge("aethercl_describe", || {
        pointers::check_out("descriptor", descriptor)?;
        // SAFETY: guaranteed by this function's caller.
        let CheckedLaunch { machine, work } =
            unsafe { given(machine, program, kernel, (arguments, count), (global, local)) }?;
        let at = machine.with(|gpu| Ok(gpu.describe(work)))?;
        // SAFETY: likewise.
        unsafe { pointers::put("descriptor", descriptor, at) }
    })
}
