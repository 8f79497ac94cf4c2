//! The tensor: a layout over a shared buffer, with its place on the tape.

pub(crate) mod autograd;
pub(crate) mod saved;

use crate::shape::{Layout, Shape};
use crate::{DType, Device, Error, Result, counted};
use autograd::Autograd;
use half::{bf16, f16};
use netcl_device::Buffer;
use netcl_kernel::Operand;
use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Weak};

/// A tensor on a device. Clones share storage, gradient and place on the tape.
#[derive(Clone)]
pub struct Tensor(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub buffer: Buffer,
    pub layout: Layout,
    pub dtype: DType,
    pub autograd: Option<Autograd>,
}

impl Tensor {
    pub(crate) fn from_parts(
        buffer: Buffer,
        layout: Layout,
        dtype: DType,
        autograd: Option<Autograd>,
    ) -> Self {
        Self(Arc::new(Inner { buffer, layout, dtype, autograd }))
    }

    /// Uninitialised, contiguous.
    pub fn empty(device: &Device, shape: impl Into<Shape>, dtype: DType) -> Result<Self> {
        let shape = shape.into();
        let bytes = shape.count().checked_mul(dtype.size());
        let bytes = bytes.ok_or_else(|| {
            Error::memory(format!("a tensor of shape {shape} is larger than memory can be"))
        })?;
        Ok(Self::from_parts(device.allocate(bytes)?, Layout::contiguous(shape), dtype, None))
    }
    /// Uninitialised, of the same shape, type and device.
    pub fn empty_like(&self) -> Result<Self> {
        Self::empty(self.device(), self.shape(), self.dtype())
    }
    /// Uninitialised f32 on the same device: statistics that ops keep for their backward.
    pub fn empty_f32(&self, shape: impl Into<Shape>) -> Result<Self> {
        Self::empty(self.device(), shape, DType::F32)
    }
    /// Every element `value`.
    pub fn full(device: &Device, shape: impl Into<Shape>, value: f32, dtype: DType) -> Result<Self> {
        let out = Self::empty(device, shape, dtype)?;
        device.fill(&out.0.buffer, &encode(&[value], dtype))?;
        Ok(out)
    }
    /// Zeros.
    pub fn zeros(device: &Device, shape: impl Into<Shape>, dtype: DType) -> Result<Self> {
        Self::full(device, shape, 0.0, dtype)
    }
    /// Ones.
    pub fn ones(device: &Device, shape: impl Into<Shape>, dtype: DType) -> Result<Self> {
        Self::full(device, shape, 1.0, dtype)
    }
    /// From the host's f32 values, rounded to `dtype`.
    ///
    /// # Errors
    /// `Shape` when `data` has not as many elements as `shape`.
    pub fn from_f32(device: &Device, shape: impl Into<Shape>, data: &[f32], dtype: DType) -> Result<Self> {
        Self::from_bytes(device, shape, &encode(data, dtype), dtype)
    }
    /// From the host's indices.
    pub fn from_u32(device: &Device, shape: impl Into<Shape>, data: &[u32]) -> Result<Self> {
        Self::from_bytes(device, shape, bytemuck::cast_slice(data), DType::U32)
    }
    /// From the host's signed integers, such as targets with an ignored class of -100.
    pub fn from_i32(device: &Device, shape: impl Into<Shape>, data: &[i32]) -> Result<Self> {
        Self::from_bytes(device, shape, bytemuck::cast_slice(data), DType::I32)
    }
    /// From bytes in the storage type's little-endian layout. A mask's byte other than 0 becomes 1.
    pub fn from_bytes(device: &Device, shape: impl Into<Shape>, bytes: &[u8], dtype: DType) -> Result<Self> {
        let shape = shape.into();
        if Some(bytes.len()) != shape.count().checked_mul(dtype.size()) {
            return Err(Error::shape(format!(
                "{} of {dtype} given for shape {shape}, which has {}",
                counted(bytes.len() / dtype.size(), "element"),
                shape.count()
            )));
        }
        let out = Self::empty(device, shape, dtype)?;
        device.upload(&out.0.buffer, 0, &stored(bytes, dtype))?;
        Ok(out)
    }
    /// The first bytes of `buffer`, as elements of `dtype` without gaps. No copy.
    ///
    /// # Errors
    /// `Shape` when the buffer is too small.
    pub fn over(buffer: &Buffer, shape: impl Into<Shape>, dtype: DType) -> Result<Self> {
        let shape = shape.into();
        let bytes = shape.count().checked_mul(dtype.size());
        if bytes.is_none_or(|bytes| bytes > buffer.bytes()) {
            return Err(Error::shape(format!(
                "a tensor of shape {shape} and type {dtype} over a buffer of {} bytes",
                buffer.bytes()
            )));
        }
        Ok(Self::from_parts(buffer.clone(), Layout::contiguous(shape), dtype, None))
    }
    /// Overwrites the elements with f32 values from the host, rounded to the storage type.
    pub fn set_f32(&self, data: &[f32]) -> Result<()> {
        self.set_bytes(&encode(data, self.dtype()))
    }
    /// Overwrites every element with `value`, rounded to the storage type. The tensor must be contiguous.
    pub fn set_all(&self, value: f32) -> Result<()> {
        let pattern = encode(&[value], self.dtype());
        if self.is_contiguous() && self.count() * self.dtype().size() == self.0.buffer.bytes() {
            return self.device().fill(&self.0.buffer, &pattern);
        }
        self.set_bytes(&pattern.repeat(self.count()))
    }
    /// Overwrites the elements with bytes from the host. The tensor must be contiguous. A mask's byte other than 0 becomes 1.
    pub fn set_bytes(&self, bytes: &[u8]) -> Result<()> {
        if Some(bytes.len()) != self.count().checked_mul(self.dtype().size()) || !self.is_contiguous() {
            return Err(Error::shape(format!(
                "{} bytes cannot overwrite a tensor of shape {} and type {}",
                bytes.len(),
                self.shape(),
                self.dtype()
            )));
        }
        let at = self.0.layout.offset * self.dtype().size();
        self.device().upload(&self.0.buffer, at, &stored(bytes, self.dtype()))
    }

    /// Overwrites bytes from the `at`-th on of a tensor's elements. The tensor must be contiguous. A mask's byte other than 0 becomes 1.
    ///
    /// # Errors
    /// `Shape` where it has not so many bytes; `Device`.
    pub fn write_bytes(&self, at: usize, bytes: &[u8]) -> Result<()> {
        let all = self.count() * self.dtype().size();
        if at.checked_add(bytes.len()).is_none_or(|end| end > all) || !self.is_contiguous() {
            return Err(Error::shape(format!(
                "{} bytes from byte {at} on cannot be written to a tensor of shape {} and type {}",
                bytes.len(),
                self.shape(),
                self.dtype()
            )));
        }
        let at = self.0.layout.offset * self.dtype().size() + at;
        self.device().upload(&self.0.buffer, at, &stored(bytes, self.dtype()))
    }

    /// Overwrites a contiguous u32 tensor on the copy queue, beside kernels that are running ([`Device::upload_beside`] says
    /// what the caller vouches for).
    pub fn set_u32_beside(&self, data: &[u32]) -> Result<()> {
        if data.len() != self.count() || !self.is_contiguous() || self.dtype() != DType::U32 {
            return Err(Error::shape(format!("{} indices cannot overwrite {self:?}", data.len())));
        }
        self.device().upload_beside(&self.0.buffer, self.0.layout.offset * 4, bytemuck::cast_slice(data))
    }

    /// Shape.
    pub fn shape(&self) -> &Shape {
        &self.0.layout.shape
    }
    /// Sizes of the axes.
    pub fn dims(&self) -> &[usize] {
        self.shape().dims()
    }
    /// Two axes, or an error.
    pub fn dims2(&self) -> Result<[usize; 2]> {
        self.shape().dims2()
    }
    /// Three axes, or an error.
    pub fn dims3(&self) -> Result<[usize; 3]> {
        self.shape().dims3()
    }
    /// Four axes, or an error.
    pub fn dims4(&self) -> Result<[usize; 4]> {
        self.shape().dims4()
    }
    /// Number of elements.
    pub fn count(&self) -> usize {
        self.shape().count()
    }
    /// Strides and offset.
    pub fn layout(&self) -> &Layout {
        &self.0.layout
    }
    /// Storage type.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }
    /// The device it lives on.
    pub fn device(&self) -> &Device {
        self.0.buffer.device()
    }
    /// The memory below.
    pub fn storage(&self) -> &Buffer {
        &self.0.buffer
    }
    /// Whether the elements lie in order without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.0.layout.is_contiguous()
    }
    /// Whether a kernel can take it from its first element on: contiguous, and starting where a sub-buffer may.
    pub fn is_dense(&self) -> bool {
        self.is_contiguous() && self.0.buffer.can_window(self.offset())
    }

    /// The elements as f32, in order. Waits for the device.
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        Ok(decode(&self.to_bytes()?, self.dtype()))
    }
    /// The elements of a tensor of integers, or 0 and 1 of a mask. Waits for the device.
    pub fn to_u32(&self) -> Result<Vec<u32>> {
        if self.dtype().is_float() {
            return Err(Error::dtype(format!("to_u32: the tensor is {}, expected u32 or i32", self.dtype())));
        }
        let bytes = self.to_bytes()?;
        if self.dtype() == DType::Bool {
            return Ok(bytes.into_iter().map(|b| u32::from(b != 0)).collect());
        }
        Ok(bytes.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect())
    }
    /// The elements' bytes, in order. Waits for the device.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let dense = self.detach().contiguous()?;
        let mut out = vec![0; dense.count() * dense.dtype().size()];
        self.device().download(&dense.0.buffer, dense.offset(), &mut out)?;
        Ok(out)
    }
    /// The one element of a tensor that has one.
    ///
    /// # Errors
    /// `Shape` when it has more or none.
    pub fn item(&self) -> Result<f32> {
        match self.to_vec()?.as_slice() {
            [value] => Ok(*value),
            other => {
                let count = counted(other.len(), "element");
                Err(Error::shape(format!("item: the tensor has {count}, expected one")))
            }
        }
    }
    /// The same once `event` has come, without waiting for what was enqueued after it.
    pub fn item_after(&self, event: &netcl_device::driver::Event) -> Result<f32> {
        if self.count() != 1 {
            return Err(Error::shape(format!(
                "item: the tensor has {}, expected one",
                counted(self.count(), "element")
            )));
        }
        let mut bytes = vec![0; self.dtype().size()];
        self.device().download_after(
            event,
            &self.0.buffer,
            self.0.layout.offset * self.dtype().size(),
            &mut bytes,
        )?;
        Ok(decode(&bytes, self.dtype())[0])
    }
    /// The elements of a contiguous u32 tensor once `event` has come, without waiting for what was enqueued after it.
    pub fn u32_after(&self, event: &netcl_device::driver::Event) -> Result<Vec<u32>> {
        if self.dtype() != DType::U32 || !self.is_contiguous() {
            return Err(Error::shape(format!("{self:?} is read beside later work, expected contiguous u32")));
        }
        let mut out = vec![0u32; self.count()];
        let bytes = bytemuck::cast_slice_mut(&mut out);
        self.device().download_after(event, &self.0.buffer, self.0.layout.offset * 4, bytes)?;
        Ok(out)
    }
    /// A copy on another device, off the tape.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        if device.same(self.device()) {
            return Ok(self.detach());
        }
        Self::from_bytes(device, self.shape(), &self.to_bytes()?, self.dtype())
    }
    /// The same elements, off the tape. No copy.
    #[must_use]
    pub fn detach(&self) -> Self {
        if self.0.autograd.is_none() {
            return self.clone();
        }
        Self::from_parts(self.0.buffer.clone(), self.0.layout.clone(), self.dtype(), None)
    }
    /// `shape` elements of a contiguous tensor from element `start` on, as a memory object of its own that shares the
    /// storage: kernels bind it without making one at every launch. Off the tape.
    ///
    /// # Errors
    /// `Shape` when they do not fit; the driver's error when `start` is not where a sub-buffer may begin.
    pub fn window(&self, start: usize, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        let end = start.checked_add(shape.count());
        if !self.is_contiguous() || end.is_none_or(|end| end > self.count()) {
            let gaps = if self.is_contiguous() { "" } else { ", which is not contiguous" };
            return Err(Error::shape(format!(
                "window: shape {shape} from element {start} of a tensor of shape {}{gaps}; expected a part of its {} elements",
                self.shape(),
                self.count()
            )));
        }
        let size = self.dtype().size();
        let buffer = self.0.buffer.window((self.0.layout.offset + start) * size, shape.count() * size)?;
        Ok(Self::from_parts(buffer, Layout::contiguous(shape), self.dtype(), None))
    }
    /// The same bits as another type of as many bytes. No copy; off the tape.
    ///
    /// # Errors
    /// `DType` where the types differ in size.
    pub fn bits_as(&self, dtype: DType) -> Result<Self> {
        if dtype.size() != self.dtype().size() {
            return Err(Error::dtype(format!(
                "the bits of {} as {dtype}, which has another size",
                self.dtype()
            )));
        }
        Ok(Self::from_parts(self.0.buffer.clone(), self.0.layout.clone(), dtype, None))
    }
    /// Every `step`-th of the elements from `start` on along an axis, `count` of them. A view, off the tape.
    ///
    /// # Errors
    /// `Shape` where the axis has not so many.
    pub fn every(&self, axis: usize, start: usize, step: usize, count: usize) -> Result<Self> {
        let n = self.dims().get(axis).copied().unwrap_or(0);
        let last = count.checked_sub(1).map_or(Some(0), |c| c.checked_mul(step)?.checked_add(start));
        if axis >= self.shape().rank() || step == 0 || count > 0 && last.is_none_or(|last| last >= n) {
            return Err(Error::shape(format!(
                "every: {count} elements from {start} in steps of {step} of axis {axis} of shape {}",
                self.shape()
            )));
        }
        let Layout { shape, mut strides, offset } = self.0.layout.clone();
        let mut dims = shape.dims().to_vec();
        let offset = if count == 0 { offset } else { offset + start * strides[axis] };
        (dims[axis], strides[axis]) = (count, strides[axis] * step);
        Ok(self.with_layout(Layout { shape: dims.into(), strides, offset }))
    }
    /// The same memory as a shape with these strides, in elements. No copy; off the tape.
    ///
    /// # Errors
    /// `Shape` where that would reach elements that this tensor does not span.
    pub fn seen_as(&self, shape: impl Into<Shape>, strides: Vec<usize>) -> Result<Self> {
        let layout = Layout { shape: shape.into(), strides, offset: self.0.layout.offset };
        if layout.strides.len() != layout.shape.rank() || layout.span() > self.0.layout.span() {
            return Err(Error::shape(format!(
                "shape {} with strides {:?} in {self:?}",
                layout.shape, layout.strides
            )));
        }
        Ok(self.with_layout(layout))
    }
    /// Whether an op made this and nothing else can reach its memory: no clone, no view, no op that saved it. Only the caller's
    /// own handle is left.
    pub(crate) fn is_unseen(&self) -> bool {
        self.is_made() && Arc::strong_count(&self.0) == 1 && self.0.buffer.is_unshared()
    }
    /// Whether anything but this handle can reach its memory or its place on the tape.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1 || !self.0.buffer.is_unshared()
    }
    /// The same storage seen through another layout; the caller vouches that it fits.
    pub(crate) fn with_layout(&self, layout: Layout) -> Self {
        Self::from_parts(self.0.buffer.clone(), layout, self.dtype(), None)
    }
}

/// A tensor that this does not keep.
#[derive(Clone)]
pub(crate) struct WeakTensor(Weak<Inner>);

impl WeakTensor {
    /// The tensor, if somebody has kept it.
    pub fn upgrade(&self) -> Option<Tensor> {
        self.0.upgrade().map(Tensor)
    }
}

impl Tensor {
    /// A handle that does not keep it.
    pub(crate) fn weak(&self) -> WeakTensor {
        WeakTensor(Arc::downgrade(&self.0))
    }
}

/// Whether both are clones of one tensor.
pub(crate) fn is_same(a: &Tensor, b: &Tensor) -> bool {
    Arc::ptr_eq(&a.0, &b.0)
}

impl Operand for Tensor {
    fn buffer(&self) -> &Buffer {
        &self.0.buffer
    }
    fn offset(&self) -> usize {
        self.0.layout.offset * self.dtype().size()
    }
    fn bytes(&self) -> usize {
        self.0.layout.span() * self.dtype().size()
    }
}

/// Bytes from the host as a storage type has them.
fn stored(bytes: &[u8], dtype: DType) -> Cow<'_, [u8]> {
    match dtype == DType::Bool && bytes.iter().any(|b| *b > 1) {
        true => bytes.iter().map(|b| u8::from(*b != 0)).collect(),
        false => bytes.into(),
    }
}

/// f32 values in a storage type, little endian.
pub(crate) fn encode(data: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F32 => bytemuck::cast_slice(data).to_vec(),
        DType::F16 => data.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        DType::Bf16 => data.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        DType::I32 => data.iter().flat_map(|v| (*v as i32).to_le_bytes()).collect(),
        DType::U32 => data.iter().flat_map(|v| (*v as u32).to_le_bytes()).collect(),
        DType::Bool => data.iter().map(|v| u8::from(*v != 0.0)).collect(),
    }
}

/// Bytes of a storage type as f32.
pub(crate) fn decode(bytes: &[u8], dtype: DType) -> Vec<f32> {
    let two = |f: fn([u8; 2]) -> f32| bytes.chunks_exact(2).map(|c| f([c[0], c[1]])).collect();
    let four = |f: fn([u8; 4]) -> f32| bytes.chunks_exact(4).map(|c| f([c[0], c[1], c[2], c[3]])).collect();
    match dtype {
        DType::F32 => four(f32::from_le_bytes),
        DType::F16 => two(|b| f16::from_le_bytes(b).to_f32()),
        DType::Bf16 => two(|b| bf16::from_le_bytes(b).to_f32()),
        DType::I32 => four(|b| i32::from_le_bytes(b) as f32),
        DType::U32 => four(|b| u32::from_le_bytes(b) as f32),
        DType::Bool => bytes.iter().map(|b| f32::from(u8::from(*b != 0))).collect(),
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor[{:?}, {}, {}]", self.dims(), self.dtype(), self.device().capabilities().id)
    }
}

/// The first elements, the shape and the type.
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 16;
        match self.to_vec() {
            Ok(values) => {
                write!(f, "[")?;
                for (i, v) in values.iter().take(SHOWN).enumerate() {
                    write!(f, "{}{v:.4}", if i == 0 { "" } else { ", " })?;
                }
                write!(f, "{}] ", if values.len() > SHOWN { ", …" } else { "" })?;
            }
            Err(e) => write!(f, "[{e}] ")?,
        }
        write!(f, "{:?}", self)
    }
}
