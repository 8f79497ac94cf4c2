//! Wrappers around pointers from C: input and output parameters, and host memory that commands read or write.
//!
//! The types have the layout of a C pointer and are used in the signatures of the exported functions. An access relies only on the requirements of
//! OpenCL for that parameter: null is always checked, and at most the number of elements given in the call is read.
#![allow(unsafe_code)] // the one place, with the exported names, that follows pointers of the caller

use crate::cl;
use crate::cl::Result;
use std::ffi::{CStr, c_char, c_void};

/// Handle of an OpenCL object: the address of an entry of [`crate::registry`], or 0.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub usize);

impl Handle {
    /// The null handle.
    pub const NULL: Self = Self(0);
}

/// Pointer of an input parameter.
#[repr(transparent)]
#[derive(Debug)]
pub struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for In<T> {}

impl<T: Copy> In<T> {
    /// A null pointer.
    pub const NULL: Self = Self(std::ptr::null());

    /// Returns a pointer to a slice that outlives the call.
    pub fn of(list: &[T]) -> Self {
        Self(list.as_ptr())
    }
    /// Returns true if it is null.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }
    /// Returns its address.
    pub fn address(self) -> usize {
        self.0.addr()
    }
    /// Returns the value that it points to; `None` for null.
    pub fn get(self) -> Option<T> {
        // SAFETY: not null, so the caller promises a value of this type; its alignment is not relied on.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }
    /// Returns the first `count` values; an empty list for null.
    pub fn list(self, count: usize) -> Vec<T> {
        if self.0.is_null() {
            return Vec::new();
        }
        // SAFETY: not null, so the caller promises `count` values; alignment is not relied on.
        (0..count).map(|i| unsafe { self.0.add(i).read_unaligned() }).collect()
    }
}

impl<T: Copy + Default + PartialEq> In<T> {
    /// Returns the pairs of a list that ends with 0 in place of a name; an empty list for null.
    pub fn pairs(self) -> Vec<(T, T)> {
        let mut pairs = Vec::new();
        while !self.0.is_null() {
            // SAFETY: every name before was not 0, so the caller promises another one here.
            let name = unsafe { self.0.add(pairs.len() * 2).read_unaligned() };
            if name == T::default() {
                break;
            }
            // SAFETY: a value follows each name.
            pairs.push((name, unsafe { self.0.add(pairs.len() * 2 + 1).read_unaligned() }));
        }
        pairs
    }
}

impl In<c_char> {
    /// Returns a pointer to a string that outlives the call.
    pub fn from_text(text: &CStr) -> Self {
        Self(text.as_ptr())
    }
    /// Returns the text up to its terminating 0, with bytes that are not UTF-8 replaced; `None` for null.
    pub fn text(self) -> Option<String> {
        // SAFETY: not null, so the caller promises a text that ends with 0.
        (!self.0.is_null()).then(|| unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
    /// Returns the first `bytes` bytes as text.
    pub fn text_of(self, bytes: usize) -> String {
        let raw: Vec<u8> = self.list(bytes).into_iter().map(|c| c as u8).collect();
        String::from_utf8_lossy(&raw).into_owned()
    }
}

/// Pointer of an output parameter.
#[repr(transparent)]
#[derive(Debug)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}

impl<T: Copy> Out<T> {
    /// Null: values are discarded.
    pub const NULL: Self = Self(std::ptr::null_mut());

    /// Returns a pointer to a variable that outlives the call.
    pub fn to(value: &mut T) -> Self {
        Self(value)
    }
    /// Returns a pointer to the first of several values that outlive the call.
    pub fn to_list(list: &mut [T]) -> Self {
        Self(list.as_mut_ptr())
    }
    /// Returns true if it is null.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }
    /// Writes a value unless the pointer is null.
    pub fn set(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, so the caller promises room for one value; alignment is not relied on.
            unsafe { self.0.write_unaligned(value) }
        }
    }
    /// Writes several values unless the pointer is null.
    pub fn set_list(self, values: &[T]) {
        for (i, value) in values.iter().enumerate().filter(|_| !self.0.is_null()) {
            // SAFETY: callers of this crate compared the number with the room that the call names.
            unsafe { self.0.add(i).write_unaligned(*value) }
        }
    }
}

impl Out<u8> {
    /// Returns the first `count` addresses of a list in the caller's memory.
    pub fn addresses(self, count: usize) -> Vec<usize> {
        In(self.0.cast::<usize>().cast_const()).list(count)
    }
}

/// `cl_image_format`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageFormat {
    /// `CL_R`, ….
    pub order: u32,
    /// `CL_UNORM_INT8`, ….
    pub channel: u32,
}

/// `cl_image_desc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the fields of OpenCL")]
pub struct ImageDescriptor {
    pub kind: u32,
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub layers: usize,
    pub row_pitch: usize,
    pub slice_pitch: usize,
    pub mip_levels: u32,
    pub samples: u32,
    pub buffer: Handle,
}

impl Default for ImageDescriptor {
    fn default() -> Self {
        let (kind, mip_levels, samples, buffer) = (0, 0, 0, Handle::NULL);
        let [width, height, depth, layers, row_pitch, slice_pitch] = [0; 6];
        Self { kind, width, height, depth, layers, row_pitch, slice_pitch, mip_levels, samples, buffer }
    }
}

/// Program memory that a command reads or writes, now or later. OpenCL requires the program to keep it until the command is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host(usize);

impl Host {
    /// Returns memory at an address.
    ///
    /// # Errors
    /// `CL_INVALID_VALUE` for null.
    pub fn at(address: usize) -> Result<Self> {
        if address == 0 { Err(cl::INVALID_VALUE) } else { Ok(Self(address)) }
    }
    /// Returns the memory at an offset.
    pub fn plus(self, bytes: usize) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
    /// Returns the address.
    pub fn address(self) -> usize {
        self.0
    }
    /// Reads bytes into `to`.
    pub fn read(self, to: &mut [u8]) {
        let from = std::ptr::with_exposed_provenance::<u8>(self.0);
        // SAFETY: the program keeps these bytes for the command that reads them; `to` is memory of this crate.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
    }
    /// Returns `bytes` bytes.
    pub fn bytes(self, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        self.read(&mut data);
        data
    }
    /// Writes bytes.
    pub fn write(self, from: &[u8]) {
        let to = std::ptr::with_exposed_provenance_mut::<u8>(self.0);
        // SAFETY: the program keeps this room for the command that writes it; `from` is memory of this crate.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }
}

/// Host memory for mapped buffers, aligned to 4096 bytes.
#[derive(Debug)]
pub struct Block(Vec<Page>);

#[repr(align(4096))]
#[derive(Clone, Copy, Debug)]
struct Page([u8; 4096]);

impl Block {
    /// Allocates zero-initialized memory.
    pub fn new(bytes: usize) -> Self {
        Self(vec![Page([0; 4096]); bytes.div_ceil(4096).max(1)])
    }
    /// Returns its first byte.
    pub fn host(&self) -> Host {
        // The address is inside the allocation, which is large enough.
        debug_assert_eq!(self.0.first().map_or(0, |p| p.0.len()), 4096);
        Host(self.0.as_ptr().expose_provenance())
    }
}

/// `void (*)(const char *, const void *, size_t, void *)`.
pub type ContextNotify = Option<extern "C" fn(*const c_char, *const c_void, usize, usize)>;
/// `void (*)(cl_object, void *)`.
pub type Notify = Option<extern "C" fn(Handle, usize)>;
/// `void (*)(cl_event, cl_int, void *)`.
pub type EventNotify = Option<extern "C" fn(Handle, i32, usize)>;
/// A function pointer that is accepted and never called.
pub type Unused = Option<extern "C" fn()>;

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> i32;
}

/// Registers a function that runs at process exit.
pub fn at_exit(function: extern "C" fn()) {
    // SAFETY: the function takes nothing, returns nothing and lives as long as the library, which is never unloaded: it holds threads.
    unsafe { atexit(function) };
}
