//! Launches: take arguments, run groups on threads, return the outcome.

mod lines;
mod terms;

pub use terms::{
    Access, Arg, LaunchError, LaunchOptions, LaunchOutcome, MAX_GROUP, MAX_STEPS, MAX_TIME, NdRange,
};

use crate::check::Checks;
use crate::counters::Counters;
use crate::exec::bytecode::{Code, Parameter, preset};
use crate::exec::{Buffer, Shared, Stop, run_groups, save};
use crate::image::Image;
use crate::memory::address::{MAX_ARGUMENTS, PointerSpace, object_pointer, with_argument};
use crate::memory::{Allocation, Memory, MemoryError};
use lines::lines;

use crate::program::{ArgKind, KernelInfo, Program};
use crate::text::counted;
use crate::types::ImageAccess;
use std::sync::Arc;

/// Maximum total private memory of a group's work-items.
const MAX_PRIVATE: u64 = 2 << 30;
/// Maximum local memory of a group: offsets in it have 32 bits with a margin on both sides.
const MAX_LOCAL: u64 = 1 << 30;

impl Program {
    /// Runs a kernel to its end.
    ///
    /// # Errors
    /// If the arguments or the range do not match the kernel, or it does not end.
    pub fn launch(
        &self,
        memory: &Memory,
        kernel: &str,
        args: &[Arg<'_>],
        range: NdRange,
        options: &LaunchOptions,
    ) -> Result<LaunchOutcome, LaunchError> {
        let info = self.kernel(kernel).ok_or_else(|| LaunchError::NoKernel(kernel.to_string()))?;
        check_range(info, &range)?;
        let checked = options.checks.any();
        let code = self
            .code(info.id(), checked)
            .map_err(|(span, m)| LaunchError::Unsupported(self.message(span, "error", &m)))?;
        let shared = self.prepare(memory, info, &code, args, &range, options)?;
        // Checks add instructions: counters come from a second run without them, from the same memory.
        let twice = checked && options.counters;
        let before = if twice { save(&shared, false) } else { Vec::new() };
        let first = LaunchOptions { counters: options.counters && !twice, ..options.clone() };
        let (mut ran, stopped) = run_groups(&shared, &range, &first);
        if twice && stopped.is_none() {
            let after = save(&shared, false);
            before.iter().for_each(|(allocation, saved)| allocation.restore(saved));
            let counted = self.counted(memory, info, args, &range, options);
            after.iter().for_each(|(allocation, saved)| allocation.restore(saved));
            ran.counters = counted?;
        }
        if !ran.tallies.is_empty() {
            ran.counters.lines = lines(self, &code, &ran.tallies);
        }
        // Without the check, the written bytes are not tracked: all writable bytes count as initialized.
        if !options.checks.uninitialized {
            for buffer in shared.buffers.iter().flatten().filter(|b| b.writable) {
                buffer.allocation.mark_written(buffer.start as usize, buffer.bytes as usize);
            }
        }
        let findings = ran.report.finish(self, &shared);
        if let Some(stop) = stopped {
            let found: String = findings.iter().map(|f| format!("{f}\n")).collect();
            return Err(LaunchError::Stopped(found + &self.stopped(stop, options)));
        }
        Ok(LaunchOutcome { findings, counters: ran.counters, printf: ran.printf })
    }

    /// Counts a launch without checks.
    fn counted(
        &self,
        memory: &Memory,
        info: &KernelInfo,
        args: &[Arg<'_>],
        range: &NdRange,
        options: &LaunchOptions,
    ) -> Result<Counters, LaunchError> {
        let code = self
            .code(info.id(), false)
            .map_err(|(span, m)| LaunchError::Unsupported(self.message(span, "error", &m)))?;
        let options = LaunchOptions { checks: Checks::NONE, ..options.clone() };
        let shared = self.prepare(memory, info, &code, args, range, &options)?;
        match run_groups(&shared, range, &options) {
            (ran, None) => {
                let lines = lines(self, &code, &ran.tallies);
                Ok(Counters { lines, ..ran.counters })
            }
            (_, Some(stop)) => Err(LaunchError::Stopped(self.stopped(stop, &options))),
        }
    }

    /// Prepares a kernel for launching; otherwise its first launch does it.
    ///
    /// # Errors
    /// A construct that this crate cannot execute, with its line.
    pub fn lower(&self, kernel: &str) -> Result<(), LaunchError> {
        let info = self.kernel(kernel).ok_or_else(|| LaunchError::NoKernel(kernel.to_string()))?;
        let code = self.code(info.id(), false);
        code.map(|_| ()).map_err(|(span, m)| LaunchError::Unsupported(self.message(span, "error", &m)))
    }

    fn stopped(&self, stop: Stop, options: &LaunchOptions) -> String {
        match stop {
            Stop::Steps(span) => self.message(
                span,
                "error",
                &format!(
                    "a work-group was still running here after {} instructions: an endless loop, or a limit that is too low",
                    options.max_steps
                ),
            ),
            Stop::Time(span) => self.message(
                span,
                "error",
                &format!(
                    "a work-group was still running here after {:?} of processor time: an endless loop, or a time limit that is too low",
                    options.max_time.unwrap_or_default()
                ),
            ),
            Stop::Trap(span) => self.message(span, "error", "the kernel stopped itself here"),
        }
    }

    fn prepare<'a>(
        &'a self,
        memory: &'a Memory,
        info: &KernelInfo,
        code: &'a Code,
        args: &[Arg<'_>],
        range: &NdRange,
        options: &LaunchOptions,
    ) -> Result<Shared<'a>, LaunchError> {
        let indirect = args.iter().rev().take_while(|arg| matches!(arg, Arg::Indirect { .. })).count();
        let (args, indirect) = args.split_at(args.len() - indirect);
        if args.len() != info.args.len() {
            let message = format!(
                "`{}` takes {}, given: {}",
                info.name,
                counted(info.args.len(), "argument"),
                args.len()
            );
            return Err(LaunchError::Argument { index: args.len(), message });
        }
        let private = u64::from(code.private_bytes) * range.local.iter().product::<u64>();
        if private > MAX_PRIVATE {
            return Err(LaunchError::Range(format!(
                "`{}` needs {} bytes of private memory per work-item, {private} for a work-group of {:?}; at most {MAX_PRIVATE} are possible",
                info.name, code.private_bytes, range.local
            )));
        }
        let mut shared = Shared {
            code,
            constants: self.constants(),
            memory,
            buffers: Vec::new(),
            images: Vec::new(),
            uniforms: vec![0; code.uniforms as usize],
            private_arguments: Vec::new(),
            range: [range.offset, range.global, range.local],
            local_bytes: code.local_bytes,
            local_arguments: Vec::new(),
            max_steps: options.max_steps,
            max_time: options.max_time,
            together: info.waits && !code.global_atomics,
            sub_group: info.required_sub_group.unwrap_or(options.sub_group).max(1),
        };
        for (register, value) in &code.constants {
            shared.uniforms[*register as usize] = *value;
        }
        let sub_group = u64::from(shared.sub_group);
        set_presets(&mut shared.uniforms, range, sub_group);
        for (index, arg) in args.iter().enumerate() {
            let bytes = argument_bytes(&mut shared, index, &info.args[index].kind, arg)?;
            place_argument(&mut shared, &code.parameters[index], &bytes);
        }
        let variable = |v: &Arc<Allocation>| Buffer {
            allocation: Arc::clone(v),
            start: 0,
            bytes: v.bytes,
            writable: true,
        };
        shared.buffers.extend(self.constants().writable.iter().map(|v| Some(variable(v))));
        for arg in indirect {
            if let Arg::Indirect { address, bytes, access } = arg {
                let buffer = buffer(memory, *address, *bytes, *access)?;
                shared.buffers.push(Some(buffer));
            }
        }
        Ok(shared)
    }
}

fn check_range(info: &KernelInfo, range: &NdRange) -> Result<(), LaunchError> {
    let items = range.local.iter().try_fold(1u64, |p, l| p.checked_mul(*l)).unwrap_or(u64::MAX);
    if items == 0 || items > MAX_GROUP {
        let message = format!(
            "a work-group of {:?} has {}; 1 to {MAX_GROUP} are possible",
            range.local,
            counted(items, "work-item")
        );
        return Err(LaunchError::Range(message));
    }
    let countable = |sizes: [u64; 3]| sizes.iter().try_fold(1u64, |p, n| p.checked_mul(*n)).is_some();
    let reachable = (0..3).all(|d| range.offset[d].checked_add(range.global[d]).is_some());
    if !countable(range.global) || !reachable {
        let message =
            format!("{:?} work-items from {:?} on cannot be counted in 64 bits", range.global, range.offset);
        return Err(LaunchError::Range(message));
    }
    match info.required_group {
        Some(required) if required != range.local => Err(LaunchError::Range(format!(
            "`{}` requires work-groups of {required:?}, launched with {:?}",
            info.name, range.local
        ))),
        _ => Ok(()),
    }
}

fn set_presets(uniforms: &mut [u64], range: &NdRange, sub_group: u64) {
    uniforms[preset::WORK_DIM as usize] = u64::from(range.dimensions);
    uniforms[preset::SUB_GROUP as usize] = sub_group;
    for d in 0..3 {
        uniforms[preset::GLOBAL_SIZE as usize + d] = range.global[d];
        uniforms[preset::ENQUEUED_SIZE as usize + d] = range.local[d];
        uniforms[preset::GROUPS as usize + d] = range.global[d].div_ceil(range.local[d]);
        uniforms[preset::OFFSET as usize + d] = range.offset[d];
    }
}

/// Returns memory that a kernel may access.
fn buffer(memory: &Memory, address: u64, bytes: u64, access: Access) -> Result<Buffer, LaunchError> {
    let outside = || {
        let what = memory.describe(address);
        LaunchError::Memory(MemoryError::Outside { address, bytes, what })
    };
    let (allocation, start) = memory.find(address).ok_or_else(outside)?;
    if bytes > allocation.bytes - start {
        return Err(outside());
    }
    Ok(Buffer { allocation, start, bytes, writable: access == Access::Write })
}

/// Returns the memory of an image.
fn image_memory(
    memory: &Memory,
    image: &Image,
    access: ImageAccess,
    how: Access,
) -> Result<Buffer, LaunchError> {
    if image.extent.contains(&0) {
        return Err(LaunchError::Range(format!("an image of {:?} texels", image.extent)));
    }
    let how = if access == ImageAccess::Read { Access::Read } else { how };
    buffer(memory, image.address, image.bytes(), how)
}

/// Returns the bytes of an argument in the form of the kernel's parameter.
fn argument_bytes(
    shared: &mut Shared<'_>,
    index: usize,
    kind: &ArgKind,
    arg: &Arg<'_>,
) -> Result<Vec<u8>, LaunchError> {
    let wrong = |message: String| Err(LaunchError::Argument { index, message });
    let mut held = None;
    let bytes = match (kind, arg) {
        (ArgKind::Buffer { .. }, Arg::Buffer { address: 0, bytes: 0, .. }) => 0u64.to_le_bytes().to_vec(),
        (ArgKind::Buffer { .. }, Arg::Buffer { address, bytes, access }) => {
            held = Some(buffer(shared.memory, *address, *bytes, *access)?);
            with_argument(*address, index).to_le_bytes().to_vec()
        }
        (ArgKind::Local, Arg::Local(bytes)) => {
            let offset = shared.local_bytes.next_multiple_of(128);
            let end = u64::from(offset).saturating_add(*bytes as u64);
            if end > MAX_LOCAL {
                return wrong(format!(
                    "{bytes} bytes of local memory bring the group's total to {end}; at most {MAX_LOCAL} are possible"
                ));
            }
            // At most `MAX_LOCAL`; lowering and the parser limit the number of objects far below 2^32.
            shared.local_bytes = end as u32;
            let object = (shared.code.local_objects.len() + shared.local_arguments.len()) as u32;
            shared.local_arguments.push((offset, *bytes as u32, index));
            object_pointer(PointerSpace::Local, object, u64::from(offset)).to_le_bytes().to_vec()
        }
        (ArgKind::Image(kind, access), Arg::Image(image, how)) if *kind == image.kind => {
            if index >= MAX_ARGUMENTS {
                return wrong(format!("images must be among the first {MAX_ARGUMENTS} arguments"));
            }
            held = Some(image_memory(shared.memory, image, *access, *how)?);
            shared.images.resize(index, None);
            shared.images.push(Some(*image));
            image.parameter(with_argument(image.address, index))
        }
        (ArgKind::Image(kind, _), _) => return wrong(format!("the parameter takes an {}", kind.name())),
        (ArgKind::Sampler, Arg::Sampler(sampler)) => sampler.0.to_le_bytes().to_vec(),
        (ArgKind::Sampler, _) => return wrong("the parameter takes a sampler".to_string()),
        (ArgKind::Value(size), Arg::Scalar(bytes)) if *size == bytes.len() as u64 => bytes.to_vec(),
        (ArgKind::Value(size), Arg::Scalar(bytes)) => {
            return wrong(format!("the parameter takes {}, given: {}", counted(*size, "byte"), bytes.len()));
        }
        (ArgKind::Buffer { .. }, _) => return wrong("the parameter takes a buffer".to_string()),
        (ArgKind::Local, _) => return wrong("the parameter takes a size of local memory".to_string()),
        (ArgKind::Value(_), _) => return wrong("the parameter takes a value".to_string()),
    };
    shared.buffers.push(held);
    Ok(bytes)
}

fn place_argument(shared: &mut Shared<'_>, parameter: &Parameter, bytes: &[u8]) {
    match parameter {
        Parameter::Registers(parts) => {
            for (offset, ty, reg) in parts {
                let at = *offset as usize;
                let mut raw = [0; 8];
                let n = ty.size() as usize;
                raw[..n].copy_from_slice(&bytes[at..at + n]);
                shared.uniforms[reg.index as usize] = ty.extend(u64::from_le_bytes(raw));
            }
        }
        Parameter::Private { offset, .. } => shared.private_arguments.push((*offset, bytes.to_vec())),
    }
}
