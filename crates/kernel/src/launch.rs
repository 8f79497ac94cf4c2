//! The launch builder: defines, sizes and arguments in the order the kernel takes them.
//!
//! `read` and `write` are the whole truth about a launch's memory: what keeps buffers alive, orders commands and counts
//! bytes reads it from here.

use crate::define::Value;
use crate::kernel::Kernel;
use crate::programs::Programs;
use crate::tune::Tuning;
use netcl_device::driver::{Arg, Memory, Range};
use netcl_device::{Buffer, Device, Error, Label, Result};

/// Something a launch can bind: a buffer from an offset on.
pub trait Operand {
    /// The buffer.
    fn buffer(&self) -> &Buffer;
    /// Where the data starts, in bytes.
    fn offset(&self) -> usize {
        0
    }
    /// Bytes the kernel touches.
    fn bytes(&self) -> usize {
        self.buffer().bytes()
    }
}

impl Operand for Buffer {
    fn buffer(&self) -> &Buffer {
        self
    }
}

/// A scalar argument: its bytes as the device reads them.
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

enum Slot {
    Memory(Memory),
    Scalar(Scalar),
    Local(usize),
}

enum Shape {
    /// Work-groups a dimension; the group size is `local` or the define `WG`.
    Groups([usize; 3]),
    /// Work-items in one dimension, rounded up to whole groups.
    Items(usize),
}

/// A launch being put together. Arguments are bound in the order of the calls.
pub struct Launch<'a> {
    kernel: &'a Kernel,
    entry: &'static str,
    device: Option<Device>,
    defines: Vec<(&'static str, Value)>,
    slots: Vec<Slot>,
    shape: Shape,
    local: Option<[usize; 3]>,
    bucket: u64,
    bytes: u64,
    flops: u64,
    error: Option<Error>,
}

impl<'a> Launch<'a> {
    pub(crate) fn new(kernel: &'a Kernel, entry: &'static str) -> Self {
        Self {
            kernel,
            entry,
            device: None,
            defines: Vec::with_capacity(8),
            slots: Vec::with_capacity(12),
            shape: Shape::Items(0),
            local: None,
            bucket: 0,
            bytes: 0,
            flops: 0,
            error: None,
        }
    }
    /// `#define name value`. What a model fixes is a define; what a step changes is an argument.
    #[must_use]
    pub fn define(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.defines.push((name, value.into()));
        self
    }
    /// Work-groups in one dimension, each of the define `WG` (1 without one) or [`Launch::local`] items.
    #[must_use]
    pub fn groups(self, groups: usize) -> Self {
        self.groups3([groups, 1, 1])
    }
    /// Work-groups in three dimensions.
    #[must_use]
    pub fn groups3(mut self, groups: [usize; 3]) -> Self {
        self.shape = Shape::Groups(groups);
        self
    }
    /// At least this many work-items in one dimension; the kernel guards its bounds.
    #[must_use]
    pub fn items(mut self, items: usize) -> Self {
        self.shape = Shape::Items(items);
        self
    }
    /// Work-group size, where it is not the define `WG`.
    #[must_use]
    pub fn local(mut self, local: [usize; 3]) -> Self {
        self.local = Some(local);
        self
    }
    /// Which class of shapes this launch belongs to, for tuning.
    #[must_use]
    pub fn bucket(mut self, bucket: u64) -> Self {
        self.bucket = bucket;
        self
    }
    /// Floating-point operations of this launch, for the profiler.
    #[must_use]
    pub fn flops(mut self, flops: u64) -> Self {
        self.flops = flops;
        self
    }
    /// An input that starts where its buffer, or an aligned part of it, starts.
    #[must_use]
    pub fn read(self, operand: &impl Operand) -> Self {
        self.bind(operand, true)
    }
    /// An output (or input and output).
    #[must_use]
    pub fn write(self, operand: &impl Operand) -> Self {
        self.bind(operand, true)
    }
    /// An input bound from its buffer's start; the kernel takes the offset as an argument.
    #[must_use]
    pub fn read_base(self, operand: &impl Operand) -> Self {
        self.bind(operand, false)
    }
    /// An output bound from its buffer's start; the kernel takes the offset as an argument.
    #[must_use]
    pub fn write_base(self, operand: &impl Operand) -> Self {
        self.bind(operand, false)
    }
    /// A scalar argument.
    #[must_use]
    pub fn scalar(mut self, value: impl Into<Scalar>) -> Self {
        self.slots.push(Slot::Scalar(value.into()));
        self
    }
    /// Local memory of this many bytes.
    #[must_use]
    pub fn local_memory(mut self, bytes: usize) -> Self {
        self.slots.push(Slot::Local(bytes));
        self
    }

    fn bind(mut self, operand: &impl Operand, from_offset: bool) -> Self {
        let buffer = operand.buffer();
        match &self.device {
            None => self.device = Some(buffer.device().clone()),
            Some(d) if !d.same(buffer.device()) => self.fail(format!(
                "arguments on two devices, {} and {}: move one with `to_device`",
                d.capabilities().id,
                buffer.device().capabilities().id
            )),
            Some(_) => {}
        }
        self.bytes += operand.bytes() as u64;
        let offset = operand.offset();
        if offset == 0 || !from_offset {
            self.slots.push(Slot::Memory(buffer.memory().clone()));
        } else if buffer.can_window(offset) {
            match buffer.window(offset, operand.bytes()) {
                Ok(window) => self.slots.push(Slot::Memory(window.memory().clone())),
                Err(e) => self.error = Some(e),
            }
        } else {
            self.fail(format!("argument {} starts at byte {offset}, which is not aligned", self.slots.len()));
        }
        self
    }

    fn fail(&mut self, why: String) {
        self.error = Some(Error::internal(format!("{} {}: {why}", self.kernel.name, self.entry)));
    }

    /// Builds the kernel if it is new and enqueues it. A launch of no work-items does nothing.
    pub fn run(mut self) -> Result<()> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let Some(device) = self.device.take() else {
            return Err(Error::internal(format!("{}: a launch without memory arguments", self.kernel.name)));
        };
        let wg = Tuning::of(&device).resolve(&device, self.kernel, self.bucket, &mut self.defines);
        let range = match self.range(wg) {
            Some(range) => range,
            None => return Ok(()),
        };
        let built = Programs::of(&device).get(&device, self.kernel, self.entry, &self.defines)?;
        let args: Vec<Arg<'_>> = self
            .slots
            .iter()
            .map(|slot| match slot {
                Slot::Memory(m) => Arg::Memory(m),
                Slot::Scalar(s) => Arg::Scalar(&s.bytes[..s.size.into()]),
                Slot::Local(bytes) => Arg::Local(*bytes),
            })
            .collect();
        let label = Label { name: self.entry, bytes: self.bytes, flops: self.flops };
        device.launch(&built, &args, range, label)
    }

    fn range(&self, wg: usize) -> Option<Range> {
        let local = self.local.unwrap_or([wg, 1, 1]);
        let groups = match self.shape {
            Shape::Groups(g) => g,
            Shape::Items(n) => [n.div_ceil(local[0]), 1, 1],
        };
        if groups.contains(&0) {
            return None;
        }
        Some(Range { global: std::array::from_fn(|i| groups[i] * local[i]), local })
    }
}
