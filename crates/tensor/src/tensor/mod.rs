//! The tensor: a layout over a shared buffer, with a place on the tape.

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

/// Tensor on a device. Clones share storage, gradient and place on the tape.
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

    /// Creates an uninitialized contiguous tensor.
    pub fn empty(device: &Device, shape: impl Into<Shape>, dtype: DType) -> Result<Self> {
        let shape = shape.into();
        let bytes = shape.count().checked_mul(dtype.size());
        let bytes = bytes
            .ok_or_else(|| Error::memory(format!("a tensor of shape {shape} exceeds the address space")))?;
        Ok(Self::from_parts(device.allocate(bytes)?, Layout::contiguous(shape), dtype, None))
    }
    /// Creates an uninitialized tensor with the same shape, type and device.
    pub fn empty_like(&self) -> Result<Self> {
        Self::empty(self.device(), self.shape(), self.dtype())
    }
    /// Creates an uninitialized f32 tensor on the same device, for statistics that ops keep for their backward.
    pub fn empty_f32(&self, shape: impl Into<Shape>) -> Result<Self> {
        Self::empty(self.device(), shape, DType::F32)
    }
    /// Creates a tensor with `value` in every element.
    pub fn full(device: &Device, shape: impl Into<Shape>, value: f32, dtype: DType) -> Result<Self> {
        let out = Self::empty(device, shape, dtype)?;
        device.fill(&out.0.buffer, &encode(&[value], dtype))?;
        Ok(out)
    }
    /// Creates a tensor of zeros.
    pub fn zeros(device: &Device, shape: impl Into<Shape>, dtype: DType) -> Result<Self> {
        Self::full(device, shape, 0.0, dtype)
    }
    /// Creates a tensor of ones.
    pub fn ones(device: &Device, shape: impl Into<Shape>, dtype: DType) -> Result<Self> {
        Self::full(device, shape, 1.0, dtype)
    }
    /// Creates a tensor from the host's f32 values, rounded to `dtype`.
    ///
    /// # Errors
    /// `Shape` if `data` and `shape` have different numbers of elements.
    pub fn from_f32(device: &Device, shape: impl Into<Shape>, data: &[f32], dtype: DType) -> Result<Self> {
        Self::from_bytes(device, shape, &encode(data, dtype), dtype)
    }
    /// Creates a tensor from the host's indices.
    pub fn from_u32(device: &Device, shape: impl Into<Shape>, data: &[u32]) -> Result<Self> {
        Self::from_bytes(device, shape, bytemuck::cast_slice(data), DType::U32)
    }
    /// Creates a tensor from the host's signed integers, such as targets with an ignored class of -100.
    pub fn from_i32(device: &Device, shape: impl Into<Shape>, data: &[i32]) -> Result<Self> {
        Self::from_bytes(device, shape, bytemuck::cast_slice(data), DType::I32)
    }
    /// Creates a tensor from bytes in the storage type's little-endian layout. Nonzero bytes of a mask become 1.
    pub fn from_bytes(device: &Device, shape: impl Into<Shape>, bytes: &[u8], dtype: DType) -> Result<Self> {
        let shape = shape.into();
        if Some(bytes.len()) != shape.count().checked_mul(dtype.size()) {
            return Err(Error::shape(format!(
                "got {} of {dtype} for shape {shape}, which has {}",
                counted(bytes.len() / dtype.size(), "element"),
                shape.count()
            )));
        }
        let out = Self::empty(device, shape, dtype)?;
        device.upload(&out.0.buffer, 0, &stored(bytes, dtype))?;
        Ok(out)
    }
    /// Creates a tensor over the first bytes of `buffer`, as dense elements of `dtype`. Does not copy.
    ///
    /// # Errors
    /// `Shape` if the buffer is too small.
    pub fn over(buffer: &Buffer, shape: impl Into<Shape>, dtype: DType) -> Result<Self> {
        let shape = shape.into();
        let bytes = shape.count().checked_mul(dtype.size());
        if bytes.is_none_or(|bytes| bytes > buffer.bytes()) {
            return Err(Error::shape(format!(
                "a tensor of shape {shape} and type {dtype} does not fit a buffer of {} bytes",
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
    /// Overwrites the elements with bytes from the host. The tensor must be contiguous. Nonzero bytes of a mask become 1.
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

    /// Overwrites a tensor's bytes from byte `at` on. The tensor must be contiguous. Nonzero bytes of a mask become 1.
    ///
    /// # Errors
    /// `Shape` if the bytes exceed the tensor; `Device`.
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

    /// Overwrites a contiguous u32 tensor on the copy queue, in parallel with running kernels. [`Device::upload_overlapped`] states what the
    /// caller must guarantee.
    pub fn set_u32_overlapped(&self, data: &[u32]) -> Result<()> {
        if data.len() != self.count() || !self.is_contiguous() || self.dtype() != DType::U32 {
            return Err(Error::shape(format!("{} indices cannot overwrite {self:?}", data.len())));
        }
        self.device().upload_overlapped(&self.0.buffer, self.0.layout.offset * 4, bytemuck::cast_slice(data))
    }

    /// Returns the shape.
    pub fn shape(&self) -> &Shape {
        &self.0.layout.shape
    }
    /// Returns the sizes of the axes.
    pub fn dims(&self) -> &[usize] {
        self.shape().dims()
    }
    /// Returns the sizes of exactly two axes.
    pub fn dims2(&self) -> Result<[usize; 2]> {
        self.shape().dims2()
    }
    /// Returns the sizes of exactly three axes.
    pub fn dims3(&self) -> Result<[usize; 3]> {
        self.shape().dims3()
    }
    /// Returns the sizes of exactly four axes.
    pub fn dims4(&self) -> Result<[usize; 4]> {
        self.shape().dims4()
    }
    /// Returns the number of elements.
    pub fn count(&self) -> usize {
        self.shape().count()
    }
    /// Returns shape, strides and offset.
    pub fn layout(&self) -> &Layout {
        &self.0.layout
    }
    /// Returns the storage type.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }
    /// Returns the device.
    pub fn device(&self) -> &Device {
        self.0.buffer.device()
    }
    /// Returns the buffer.
    pub fn storage(&self) -> &Buffer {
        &self.0.buffer
    }
    /// Returns whether the elements are stored in order without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.0.layout.is_contiguous()
    }
    /// Returns whether a kernel can bind it from its first element on: contiguous, and aligned like a sub-buffer.
    pub fn is_dense(&self) -> bool {
        self.is_contiguous() && self.0.buffer.can_window(self.offset())
    }

    /// Returns the elements as f32, in order. Waits for the device.
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        Ok(decode(&self.to_bytes()?, self.dtype()))
    }
    /// Returns the elements of an integer tensor, or 0 and 1 of a mask. Waits for the device.
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
    /// Returns the elements' bytes, in order. Waits for the device.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let dense = self.detach().contiguous()?;
        let mut out = vec![0; dense.count() * dense.dtype().size()];
        self.device().download(&dense.0.buffer, dense.offset(), &mut out)?;
        Ok(out)
    }
    /// Returns the element of a tensor with one element.
    ///
    /// # Errors
    /// `Shape` if it has another number of elements.
    pub fn item(&self) -> Result<f32> {
        match self.to_vec()?.as_slice() {
            [value] => Ok(*value),
            other => {
                let count = counted(other.len(), "element");
                Err(Error::shape(format!("item: the tensor has {count}, expected one")))
            }
        }
    }
    /// Like [`Tensor::item`], but waits only for `event`, not for later commands.
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
    /// Returns the elements of a contiguous u32 tensor. Waits only for `event`, not for later commands.
    pub fn u32_after(&self, event: &netcl_device::driver::Event) -> Result<Vec<u32>> {
        if self.dtype() != DType::U32 || !self.is_contiguous() {
            return Err(Error::shape(format!(
                "cannot read {self:?} during later work: expected contiguous u32"
            )));
        }
        let mut out = vec![0u32; self.count()];
        let bytes = bytemuck::cast_slice_mut(&mut out);
        self.device().download_after(event, &self.0.buffer, self.0.layout.offset * 4, bytes)?;
        Ok(out)
    }
    /// Copies the tensor to another device, off the tape.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        if device.same(self.device()) {
            return Ok(self.detach());
        }
        Self::from_bytes(device, self.shape(), &self.to_bytes()?, self.dtype())
    }
    /// Returns the same elements, off the tape. Does not copy.
    #[must_use]
    pub fn detach(&self) -> Self {
        if self.0.autograd.is_none() {
            return self.clone();
        }
        Self::from_parts(self.0.buffer.clone(), self.0.layout.clone(), self.dtype(), None)
    }
    /// Returns `shape` elements of a contiguous tensor from element `start` on, as a separate memory object that shares the storage.
    /// Kernels can bind it without creating one per launch. Off the tape.
    ///
    /// # Errors
    /// `Shape` if they do not fit; the driver's error if a sub-buffer cannot begin at `start`.
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
    /// Reinterprets the bits as another type of equal size. Does not copy; off the tape.
    ///
    /// # Errors
    /// `DType` if the sizes differ.
    pub fn bits_as(&self, dtype: DType) -> Result<Self> {
        if dtype.size() != self.dtype().size() {
            return Err(Error::dtype(format!(
                "cannot reinterpret the bits of {} as {dtype}, which has another size",
                self.dtype()
            )));
        }
        Ok(Self::from_parts(self.0.buffer.clone(), self.0.layout.clone(), dtype, None))
    }
    /// Returns `count` elements along an axis, from `start` on with stride `step`, as a view off the tape.
    ///
    /// # Errors
    /// `Shape` if the axis does not have as many.
    pub fn every(&self, axis: usize, start: usize, step: usize, count: usize) -> Result<Self> {
        let n = self.dims().get(axis).copied().unwrap_or(0);
        let last = count.checked_sub(1).map_or(Some(0), |c| c.checked_mul(step)?.checked_add(start));
        if axis >= self.shape().rank() || step == 0 || count > 0 && last.is_none_or(|last| last >= n) {
            return Err(Error::shape(format!(
                "every: {count} elements from {start} in steps of {step} exceed axis {axis} of shape {}",
                self.shape()
            )));
        }
        let Layout { shape, mut strides, offset } = self.0.layout.clone();
        let mut dims = shape.dims().to_vec();
        let offset = if count == 0 { offset } else { offset + start * strides[axis] };
        (dims[axis], strides[axis]) = (count, strides[axis] * step);
        Ok(self.with_layout(Layout { shape: dims.into(), strides, offset }))
    }
    /// Views the same memory as a shape with these strides, in elements. Does not copy; off the tape.
    ///
    /// # Errors
    /// `Shape` if this would reach elements that this tensor does not span.
    pub fn as_strided(&self, shape: impl Into<Shape>, strides: Vec<usize>) -> Result<Self> {
        let layout = Layout { shape: shape.into(), strides, offset: self.0.layout.offset };
        if layout.strides.len() != layout.shape.rank() || layout.span() > self.0.layout.span() {
            return Err(Error::shape(format!(
                "shape {} with strides {:?} exceeds {self:?}",
                layout.shape, layout.strides
            )));
        }
        Ok(self.with_layout(layout))
    }
    /// Returns whether an op created this tensor and only the caller's handle can reach its memory: no clone, no view, and no op that saved
    /// it.
    pub(crate) fn is_unseen(&self) -> bool {
        self.is_made() && Arc::strong_count(&self.0) == 1 && self.0.buffer.is_unshared()
    }
    /// Returns whether anything but this handle can reach its memory or its place on the tape.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1 || !self.0.buffer.is_unshared()
    }
    /// Returns the same storage with another layout. The caller guarantees that it fits.
    pub(crate) fn with_layout(&self, layout: Layout) -> Self {
        Self::from_parts(self.0.buffer.clone(), layout, self.dtype(), None)
    }
}

/// Weak reference to a tensor.
#[derive(Clone)]
pub(crate) struct WeakTensor(Weak<Inner>);

impl WeakTensor {
    /// Returns the tensor, if it still exists.
    pub fn upgrade(&self) -> Option<Tensor> {
        self.0.upgrade().map(Tensor)
    }
}

impl Tensor {
    /// Returns a weak reference.
    pub(crate) fn weak(&self) -> WeakTensor {
        WeakTensor(Arc::downgrade(&self.0))
    }
}

/// Returns whether both are clones of one tensor.
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

/// Converts bytes from the host to the form in which a storage type is stored.
fn stored(bytes: &[u8], dtype: DType) -> Cow<'_, [u8]> {
    match dtype == DType::Bool && bytes.iter().any(|b| *b > 1) {
        true => bytes.iter().map(|b| u8::from(*b != 0)).collect(),
        false => bytes.into(),
    }
}

/// Encodes f32 values in a storage type, little endian.
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

/// Decodes bytes of a storage type to f32.
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

/// Shows the first elements, the shape and the type.
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_SHOWN_ELEMENTS: usize = 16;
        match self.to_vec() {
            Ok(values) => {
                write!(f, "[")?;
                for (i, v) in values.iter().take(MAX_SHOWN_ELEMENTS).enumerate() {
                    write!(f, "{}{v:.4}", if i == 0 { "" } else { ", " })?;
                }
                write!(f, "{}] ", if values.len() > MAX_SHOWN_ELEMENTS { ", …" } else { "" })?;
            }
            Err(e) => write!(f, "[{e}] ")?,
        }
        write!(f, "{:?}", self)
    }
}
