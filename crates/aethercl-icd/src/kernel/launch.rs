//! Kernel launches: `clEnqueueNDRangeKernel` and `clEnqueueTask`.

use super::info::local_bytes;
use super::{Kernel, Value};
use crate::cl;
use crate::cl::Result;
use crate::device::{Device, Times};
use crate::memory::Mem;
use crate::program::Build;
use crate::queue::{After, Ask, Job, Queue, enqueue};
use crate::raw::{Handle, In};
use crate::registry;
use crate::report;
use aethercl::image::{Image, Sampler};
use aethercl::machine::{Binding, CommandOutcome, GpuError, KernelLaunch};
use aethercl::types::ImageAccess;
use aethercl::{Access, ArgKind, KernelInfo, NdRange};
use std::io::Write;
use std::sync::Arc;

/// Maximum work-group size that the driver chooses if the program specifies none.
const CHOSEN: u64 = 256;

/// `clEnqueueNDRangeKernel`.
pub fn enqueue_nd_range_kernel(
    queue: Handle,
    kernel: Handle,
    dimensions: u32,
    offset: In<usize>,
    global: In<usize>,
    local: In<usize>,
    ask: Ask,
) -> Result<()> {
    let queue = registry::get::<Queue>(queue)?;
    let kernel = registry::get::<Kernel>(kernel)?;
    if !Arc::ptr_eq(&queue.context, &kernel.program.context) {
        return Err(cl::INVALID_CONTEXT);
    }
    if !(1..=3).contains(&dimensions) {
        return Err(cl::INVALID_WORK_DIMENSION);
    }
    let build = kernel.program.build_on(&queue.device);
    let program = build.program.clone().ok_or(cl::INVALID_PROGRAM_EXECUTABLE)?;
    let values = given(&queue, &kernel)?;
    let range = range(&queue.device, &kernel, &build, dimensions, [offset, global, local])?;
    if local_bytes(&kernel) > queue.device.profile.local.group_bytes {
        return Err(cl::OUT_OF_RESOURCES);
    }
    if range.global.contains(&0) {
        return enqueue(&queue, cl::COMMAND_NDRANGE_KERNEL, ask, After::Usual, Job::nothing()).map(|_| ());
    }
    let of = Arc::clone(&queue);
    let job = Job::new(move || run(&of, &kernel, &program, &values, range));
    enqueue(&queue, cl::COMMAND_NDRANGE_KERNEL, ask, After::Usual, job).map(|_| ())
}

/// An argument of a launch.
enum LaunchArgument {
    Mem(Option<Arc<Mem>>),
    Local(usize),
    Sampler(Sampler),
    Bytes(Vec<u8>),
}

/// Copies the current arguments. The command keeps buffers and images alive until it has finished.
fn given(queue: &Queue, kernel: &Kernel) -> Result<Vec<LaunchArgument>> {
    let values = kernel.values();
    let one = |(i, value): (usize, &Option<Value>)| match value {
        Some(Value::Bytes(bytes)) => Ok(LaunchArgument::Bytes(bytes.clone())),
        Some(Value::Local(bytes)) => Ok(LaunchArgument::Local(*bytes)),
        Some(Value::Sampler(sampler)) => Ok(LaunchArgument::Sampler(*sampler)),
        Some(Value::Mem(None)) => Ok(LaunchArgument::Mem(None)),
        Some(Value::Mem(Some(mem))) => {
            mem.upgrade().map(|mem| LaunchArgument::Mem(Some(mem))).ok_or((i, "was released"))
        }
        None => Err((i, "was never set")),
    };
    values.iter().enumerate().map(one).collect::<std::result::Result<_, _>>().map_err(|(i, why)| {
        let KernelInfo { name, args, .. } = &kernel.info;
        let text = format!("kernel {name}: argument {i}, {} {}, {why}", args[i].ty, args[i].name);
        report::failure(&text);
        queue.context.tell(&text);
        cl::INVALID_KERNEL_ARGS
    })
}

/// `clEnqueueTask`.
pub fn enqueue_task(queue: Handle, kernel: Handle, ask: Ask) -> Result<()> {
    let one = [1usize];
    let (global, local) = (In::of(&one), In::of(&one));
    enqueue_nd_range_kernel(queue, kernel, 1, In::NULL, global, local, ask)
}

fn range(
    device: &Device,
    kernel: &Kernel,
    build: &Build,
    dimensions: u32,
    [offset, global, local]: [In<usize>; 3],
) -> Result<NdRange> {
    let n = dimensions as usize;
    let sizes = |list: In<usize>, otherwise: u64| {
        let mut out = [otherwise; 3];
        list.list(n).iter().zip(&mut out).for_each(|(size, to)| *to = *size as u64);
        out
    };
    // Since OpenCL 2.1 a range may be empty, and a null global size means an empty range.
    let mut range = NdRange {
        global: if global.is_null() { [0; 3] } else { sizes(global, 1) },
        local: sizes(local, 1),
        offset: sizes(offset, 0),
        dimensions,
    };
    if (0..3).any(|d| range.offset[d].checked_add(range.global[d]).is_none()) {
        return Err(cl::INVALID_GLOBAL_OFFSET);
    }
    let required = kernel.info.required_group;
    let most = u64::from(device.profile.compute.max_group);
    if local.is_null() {
        let Some(required) = required else {
            range.local = chosen(range.global, most.min(CHOSEN));
            return Ok(range);
        };
        range.local = required;
    }
    if range.local.iter().any(|l| *l > most) {
        return Err(cl::INVALID_WORK_ITEM_SIZE);
    }
    let items = range.local.iter().product::<u64>();
    let divides = |d: usize| range.local[d] > 0 && range.global[d].is_multiple_of(range.local[d]);
    let even = !build.uniform || (0..3).all(divides);
    if items == 0 || items > most || !even || required.is_some_and(|r| r != range.local) {
        return Err(cl::INVALID_WORK_GROUP_SIZE);
    }
    Ok(range)
}

/// Returns the largest work-group of at most `most` items whose sizes divide the range; dimension 0 is maximized first.
fn chosen(global: [u64; 3], most: u64) -> [u64; 3] {
    let mut left = most;
    global.map(|size| {
        let largest = (1..=left.min(size.max(1))).rev().find(|l| size % l == 0).unwrap_or(1);
        left /= largest;
        largest
    })
}

fn run(
    queue: &Arc<Queue>,
    kernel: &Arc<Kernel>,
    program: &Arc<aethercl::Program>,
    values: &[LaunchArgument],
    range: NdRange,
) -> Result<Times> {
    let device = &queue.device;
    let mut bindings = Vec::with_capacity(values.len());
    for (value, arg) in values.iter().zip(&kernel.info.args) {
        bindings.push(match value {
            LaunchArgument::Bytes(bytes) => Binding::Scalar(bytes.clone()),
            LaunchArgument::Local(bytes) => Binding::Local(*bytes),
            LaunchArgument::Sampler(sampler) => Binding::Sampler(*sampler),
            LaunchArgument::Mem(None) => Binding::Buffer { address: 0, bytes: 0, access: Access::Read },
            LaunchArgument::Mem(Some(mem)) => {
                // Real devices do not enforce read-only flags and programs rely on that, so only the `contract` check enforces them.
                let promised = mem.flags & cl::MEM_READ_ONLY != 0
                    || matches!(
                        arg.kind,
                        ArgKind::Buffer { read_only: true, .. } | ArgKind::Image(_, ImageAccess::Read)
                    );
                let reads = promised && device.launch.checks.contract;
                let access = if reads { Access::Read } else { Access::Write };
                let address = mem.address_on(device)?;
                match mem.picture {
                    Some(picture) => Binding::Image(Image { address, ..picture.shape }, access),
                    None => Binding::Buffer { address, bytes: mem.size as u64, access },
                }
            }
        });
    }
    let name = kernel.info.name.as_str();
    let work = KernelLaunch::new(program, name, bindings, range, device.launch.clone());
    let work = Arc::new(work.timed(queue.profiles()));
    let number = queue.number;
    let done = device.compute(|gpu, call| gpu.launch(number, work, Some(call)));
    let done = done.map_err(|e| failed(queue, name, &e))?;
    match &done.1.outcome {
        Ok(outcome) => left(outcome),
        Err(e) => return Err(failed(queue, name, e)),
    }
    report::launch(&device.profile.name, name, &done.1);
    Ok(Times::of(&done))
}

/// Handles the output of a finished launch: findings and printf output.
fn left(outcome: &CommandOutcome) {
    report::findings(&outcome.done.findings);
    if !outcome.done.printed.is_empty() {
        let mut out = std::io::stdout().lock();
        // A closed stream is not an error of the program.
        let _ = out.write_all(outcome.done.printed.as_bytes()).and_then(|()| out.flush());
    }
}

fn failed(queue: &Queue, name: &str, error: &GpuError) -> i32 {
    let text = match error {
        GpuError::Kernel { .. } | GpuError::Resources { .. } | GpuError::Hang { .. } => error.to_string(),
        other => format!("kernel {name}: {other}"),
    };
    report::failure(&text);
    queue.context.tell(&text);
    match error {
        GpuError::OutOfMemory { .. } => cl::MEM_OBJECT_ALLOCATION_FAILURE,
        _ => cl::OUT_OF_RESOURCES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_groups_divide_the_range_and_are_large() {
        assert_eq!(chosen([1024, 1, 1], 256), [256, 1, 1]);
        assert_eq!(chosen([100, 100, 1], 256), [100, 2, 1]);
        assert_eq!(chosen([7, 5, 3], 256), [7, 5, 3]);
        assert_eq!(chosen([257, 4, 4], 256), [1, 4, 4]);
        assert_eq!(chosen([0, 4, 1], 256), [1, 4, 1]);
    }
}
