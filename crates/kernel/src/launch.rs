//! The launch builder: defines, sizes and arguments in the order of the kernel's parameters.
//!
//! `read` and `write` fully describe a launch's memory accesses. Buffer lifetimes, command order and byte counts rely on them.

use crate::define::Value;
use crate::kernel::Kernel;
use crate::programs::Programs;
use crate::tune::Tuning;
use netcl_device::driver::{Access, KernelHandle, Range};
use netcl_device::record::Argument;
use netcl_device::{Buffer, Device, Effects, Error, ErrorKind, Label, Result};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// An object that a launch can bind: a buffer from an offset.
pub trait Operand {
    /// Returns the buffer.
    fn buffer(&self) -> &Buffer;
    /// Returns the start of the data, in bytes.
    fn offset(&self) -> usize {
        0
    }
    /// Returns the bytes that the kernel touches.
    fn bytes(&self) -> usize {
        self.buffer().bytes()
    }
}

impl Operand for Buffer {
    fn buffer(&self) -> &Buffer {
        self
    }
}

/// A scalar argument: its bytes in the device's format.
#[derive(Clone, Copy, Debug)]
pub struct Scalar {
    bytes: [u8; 8],
    size: u8,
}

impl Scalar {
    fn of<const N: usize>(value: [u8; N]) -> Self {
        let mut bytes = [0; 8];
        bytes[..N].copy_from_slice(&value);
        Self { bytes, size: N as u8 }
    }
}
impl From<f32> for Scalar {
    fn from(v: f32) -> Self {
        Self::of(v.to_ne_bytes())
    }
}
impl From<i32> for Scalar {
    fn from(v: i32) -> Self {
        Self::of(v.to_ne_bytes())
    }
}
impl From<u32> for Scalar {
    fn from(v: u32) -> Self {
        Self::of(v.to_ne_bytes())
    }
}
impl From<u64> for Scalar {
    fn from(v: u64) -> Self {
        Self::of(v.to_ne_bytes())
    }
}
impl From<i64> for Scalar {
    fn from(v: i64) -> Self {
        Self::of(v.to_ne_bytes())
    }
}
/// Sizes are `ulong` in kernels.
impl From<usize> for Scalar {
    fn from(v: usize) -> Self {
        Self::of((v as u64).to_ne_bytes())
    }
}

#[derive(Clone, Copy)]
enum Shape {
    /// Work-groups per dimension; the group size is `local` or the define `WG`.
    Groups([usize; 3]),
    /// Work-items in one dimension, rounded up to whole groups.
    Items(usize),
}

impl Default for Shape {
    fn default() -> Self {
        Self::Items(0)
    }
}

thread_local! {
    /// Emptied parts of earlier launches. Allocating new ones for every launch took a third of the host time of a small model.
    #[allow(clippy::vec_box)] // a launch takes the box as it is
    static SPARE: RefCell<Vec<Box<Parts>>> = const { RefCell::new(Vec::new()) };
}

/// Result of a launch's lookups: its kernel and sizes. [`Launch::run_as`] with the same defines and shape needs no lookup.
pub struct ResolvedLaunch {
    kernel: Arc<KernelHandle>,
    range: Range,
    tuning: Arc<Tuning>,
    generation: u64,
}

impl ResolvedLaunch {
    /// Returns true if a launch would look up the same kernel now: no tuned parameter has changed, and launches are not being recorded.
    pub fn is_current(&self) -> bool {
        self.tuning.generation() == Some(self.generation)
    }
}

/// Kernel, sizes, tuning and its generation.
type Looked = (Arc<KernelHandle>, Range, Arc<Tuning>, Option<u64>);

/// A launch under construction. Arguments are bound in call order.
pub struct Launch<'a> {
    kernel: &'a Kernel,
    entry: &'static str,
    // Boxed, because the builder passes the launch by value from call to call.
    parts: Box<Parts>,
}

#[derive(Default)]
struct Parts {
    device: Option<Device>,
    defines: Vec<(&'static str, Value)>,
    slots: Vec<Argument>,
    shape: Shape,
    local: Option<[usize; 3]>,
    bucket: u64,
    bytes: u64,
    flops: u64,
    indirect: Vec<Buffer>,
    indirect_writes: Vec<Buffer>,
    changes: Vec<Buffer>,
    error: Option<Error>,
}

impl Parts {
    /// Empties the parts and keeps them for the next launch.
    fn recycle(mut self: Box<Self>) {
        self.defines.clear();
        self.slots.clear();
        self.indirect.clear();
        self.indirect_writes.clear();
        self.changes.clear();
        let (defines, slots) = (std::mem::take(&mut self.defines), std::mem::take(&mut self.slots));
        let changes = std::mem::take(&mut self.changes);
        *self = Self { defines, slots, changes, ..Self::default() };
        // A thread that is ending does not have storage for them.
        let _ = SPARE.try_with(|spare| spare.borrow_mut().push(self));
    }
}

thread_local! {
    static CHECKING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` and drops its launches in a dry run on this thread before their programs are built. Use it if only the checks of a step's operations are
/// needed.
pub fn checked_only<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            CHECKING.set(self.0);
        }
    }
    let _restore = Restore(CHECKING.replace(true));
    f()
}

impl Kernel {
    /// Begins a launch of `entry`, a `__kernel` function of this source.
    pub fn launch(&'static self, entry: &'static str) -> Launch<'static> {
        Launch::new(self, entry)
    }
}

impl<'a> Launch<'a> {
    pub(crate) fn new(kernel: &'a Kernel, entry: &'static str) -> Self {
        let parts = SPARE.with_borrow_mut(Vec::pop).unwrap_or_else(|| {
            Box::new(Parts {
                defines: Vec::with_capacity(16),
                slots: Vec::with_capacity(64),
                ..Parts::default()
            })
        });
        Self { kernel, entry, parts }
    }
    /// Adds `#define name value`. Use a define for values that a model fixes, and an argument for values that a step changes.
    #[must_use]
    pub fn define(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.parts.defines.push((name, value.into()));
        self
    }
    /// Sets the number of work-groups in one dimension. Each has the define `WG` (1 without one) or [`Launch::local`] items.
    #[must_use]
    pub fn groups(self, groups: usize) -> Self {
        self.groups3([groups, 1, 1])
    }
    /// Sets the number of work-groups in three dimensions.
    #[must_use]
    pub fn groups3(mut self, groups: [usize; 3]) -> Self {
        self.parts.shape = Shape::Groups(groups);
        self
    }
    /// Sets a minimum number of work-items in one dimension; the kernel checks its bounds.
    #[must_use]
    pub fn items(mut self, items: usize) -> Self {
        self.parts.shape = Shape::Items(items);
        self
    }
    /// Sets the work-group size if it is not the define `WG`.
    #[must_use]
    pub fn local(mut self, local: [usize; 3]) -> Self {
        self.parts.local = Some(local);
        self
    }
    /// Sets the class of shapes of this launch, for tuning.
    #[must_use]
    pub fn bucket(mut self, bucket: u64) -> Self {
        self.parts.bucket = bucket;
        self
    }
    /// Sets the floating-point operations of this launch, for the profiler.
    #[must_use]
    pub fn flops(mut self, flops: u64) -> Self {
        self.parts.flops = flops;
        self
    }
    /// Adds an input at the start of its buffer or of an aligned part of it.
    #[must_use]
    pub fn read(self, operand: &impl Operand) -> Self {
        self.bind(operand, Access::Read, true)
    }
    /// Adds an output (or input and output).
    #[must_use]
    pub fn write(self, operand: &impl Operand) -> Self {
        self.bind(operand, Access::Write, true)
    }
    /// Adds an input bound at the start of its buffer; the kernel takes the offset as an argument.
    #[must_use]
    pub fn read_base(self, operand: &impl Operand) -> Self {
        self.bind(operand, Access::Read, false)
    }
    /// Adds an output bound at the start of its buffer; the kernel takes the offset as an argument.
    #[must_use]
    pub fn write_base(self, operand: &impl Operand) -> Self {
        self.bind(operand, Access::Write, false)
    }
    /// Does the same as [`Launch::write_base`] for an output that is also read entirely: its bytes count twice for the profiler.
    #[must_use]
    pub fn update_base(mut self, operand: &impl Operand) -> Self {
        self.parts.bytes += operand.bytes() as u64;
        self.bind(operand, Access::Write, false)
    }
    /// Declares an input that is not an argument because an argument contains its address, such as a tensor map. Without this call, the read is
    /// unknown.
    #[must_use]
    pub fn read_indirect(mut self, operand: &impl Operand) -> Self {
        self.parts.bytes += operand.bytes() as u64;
        self.parts.indirect.push(operand.buffer().clone());
        self
    }
    /// Declares memory that the launch reads and writes the same way.
    #[must_use]
    pub fn update_indirect(mut self, operand: &impl Operand) -> Self {
        self.parts.bytes += operand.bytes() as u64;
        self.parts.indirect_writes.push(operand.buffer().clone());
        self
    }
    /// Declares that the launch changes only this window of a buffer that it writes, and other windows declared this way. The versions of the rest of
    /// the buffer stay the same (`netcl_device::version`).
    #[must_use]
    pub fn changes(mut self, part: &Buffer) -> Self {
        self.parts.changes.push(part.clone());
        self
    }
    /// Adds a scalar argument.
    #[must_use]
    pub fn scalar(mut self, value: impl Into<Scalar>) -> Self {
        let Scalar { bytes, size } = value.into();
        self.parts.slots.push(Argument::Scalar(bytes, size));
        self
    }
    /// Adds local memory of this many bytes.
    #[must_use]
    pub fn local_memory(mut self, bytes: usize) -> Self {
        self.parts.slots.push(Argument::Local(bytes));
        self
    }

    fn bind(mut self, operand: &impl Operand, access: Access, from_offset: bool) -> Self {
        let buffer = operand.buffer();
        match &self.parts.device {
            None => self.parts.device = Some(buffer.device().clone()),
            Some(d) if !d.same(buffer.device()) => self.fail(
                ErrorKind::Device,
                &format!(
                    "arguments on two devices, {} and {}: move one with `to_device`",
                    d.capabilities().id,
                    buffer.device().capabilities().id
                ),
            ),
            Some(_) => {}
        }
        self.parts.bytes += operand.bytes() as u64;
        let offset = operand.offset();
        if buffer.device().debug().shapes
            && offset.checked_add(operand.bytes()).is_none_or(|end| end > buffer.bytes())
        {
            let at = self.parts.slots.len();
            self.fail(
                ErrorKind::Shape,
                &format!(
                    "shapes: argument {at} is declared to span {} bytes from byte {offset} on, of a buffer of {}",
                    operand.bytes(),
                    buffer.bytes()
                ),
            );
        }
        if offset == 0 || !from_offset {
            self.parts.slots.push(Argument::Memory(buffer.clone(), access));
        } else if buffer.can_window(offset) {
            match buffer.window(offset, operand.bytes()) {
                Ok(window) => self.parts.slots.push(Argument::Memory(window, access)),
                Err(e) => self.parts.error = Some(e),
            }
        } else {
            let at = self.parts.slots.len();
            self.fail(
                ErrorKind::Launch,
                &format!("argument {at} starts at byte {offset}, which is not aligned: pass a contiguous copy, or use `read_base`"),
            );
        }
        self
    }

    fn fail(&mut self, kind: ErrorKind, why: &str) {
        self.parts.error = Some(Error::new(kind, format!("{}: {why}", self.name())));
    }

    /// Returns the kernel name, with the entry name if that differs.
    fn name(&self) -> String {
        if self.kernel.name == self.entry {
            return self.entry.into();
        }
        format!("{} {}", self.kernel.name, self.entry)
    }

    /// Builds the kernel if it is new and enqueues it. A launch without work-items does nothing.
    pub fn run(self) -> Result<()> {
        self.run_finding().map(|_| ())
    }

    /// Does the same and returns its lookups for [`Launch::run_as`]. Returns `None` for a launch without work-items, and while launches are being
    /// recorded.
    pub fn run_finding(mut self) -> Result<Option<ResolvedLaunch>> {
        let done = self.device().and_then(|device| match self.find(&device)? {
            Some((kernel, range, tuning, generation)) => {
                self.enqueue(&device, &kernel, range)?;
                Ok(generation.map(|generation| ResolvedLaunch { kernel, range, tuning, generation }))
            }
            None => Ok(None),
        });
        self.parts.recycle();
        done
    }

    /// Enqueues the launch with the lookups of a launch with the same defines and shape. The defines and shape of this launch are ignored.
    pub fn run_as(mut self, found: &ResolvedLaunch) -> Result<()> {
        let done = self.device().and_then(|device| self.enqueue(&device, &found.kernel, found.range));
        self.parts.recycle();
        done
    }

    /// Returns the device of the arguments, or the error of an invalid argument.
    fn device(&mut self) -> Result<Device> {
        if let Some(error) = self.parts.error.take() {
            return Err(error);
        }
        self.parts.device.take().ok_or_else(|| {
            let why = "a launch needs at least one memory argument, which determines the device";
            Error::launch(format!("{}: {why}", self.name()))
        })
    }

    fn find(&mut self, device: &Device) -> Result<Option<Looked>> {
        if CHECKING.get() && device.is_dry_run() {
            return Ok(None);
        }
        let (which, bucket) = ((self.kernel, self.entry), self.parts.bucket);
        let tuning = Tuning::of(device);
        // Read the generation before the parameters, so that a change in between is detected.
        let generation = tuning.generation();
        let wg = tuning.resolve(device, which, bucket, &mut self.parts.defines);
        let Some(range) = self.range(wg) else { return Ok(None) };
        let built = (self.parts.defines.as_slice(), range.local);
        let kernel = Programs::of(device).get(device, self.kernel, self.entry, built)?;
        Ok(Some((kernel, range, tuning, generation)))
    }

    fn enqueue(&self, device: &Device, kernel: &KernelHandle, range: Range) -> Result<()> {
        let Parts { bytes, flops, .. } = *self.parts;
        let label = Label { name: self.entry, variant: self.kernel.name, bytes, flops };
        let Parts { indirect, indirect_writes, changes, .. } = &*self.parts;
        let effects = Effects { reads: indirect, writes: indirect_writes, changes };
        device.describe_launch(|| {
            let define = |(name, value): &(&str, Value)| format!("{name}={value}");
            self.parts.defines.iter().map(define).collect::<Vec<_>>().join(" ")
        });
        device.launch(kernel, &self.parts.slots, range, label, effects)
    }

    fn range(&self, wg: usize) -> Option<Range> {
        let local = self.parts.local.unwrap_or([wg, 1, 1]);
        let groups = match self.parts.shape {
            Shape::Groups(g) => g,
            Shape::Items(n) => [n.div_ceil(local[0]), 1, 1],
        };
        if groups.contains(&0) {
            return None;
        }
        Some(Range { global: std::array::from_fn(|i| groups[i].saturating_mul(local[i])), local })
    }
}
