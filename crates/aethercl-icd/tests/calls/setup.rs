//! Common setup: a context with a queue, and helpers for calls.

use aethercl_icd::api::entry::*;
use aethercl_icd::cl;
use aethercl_icd::raw::{Handle, In, Out};
use std::ffi::CString;

/// A context of the first device with a queue.
pub struct Setup {
    pub device: Handle,
    pub context: Handle,
    pub queue: Handle,
}

impl Drop for Setup {
    fn drop(&mut self) {
        assert_eq!(clReleaseCommandQueue(self.queue), 0);
        assert_eq!(clReleaseContext(self.context), 0);
    }
}

/// Returns the result of a call that creates an object.
pub fn made(call: impl FnOnce(Out<i32>) -> Handle) -> Result<Handle, i32> {
    let mut code = 1;
    let handle = call(Out::to(&mut code));
    if code == 0 { Ok(handle) } else { Err(code) }
}

pub fn devices() -> Vec<Handle> {
    let mut platform = Handle::NULL;
    assert_eq!(clGetPlatformIDs(1, Out::to(&mut platform), Out::NULL), 0);
    let mut count = 0;
    assert_eq!(clGetDeviceIDs(platform, cl::DEVICE_TYPE_ALL, 0, Out::NULL, Out::to(&mut count)), 0);
    let mut list = vec![Handle::NULL; count as usize];
    assert_eq!(clGetDeviceIDs(platform, cl::DEVICE_TYPE_GPU, count, Out::to_list(&mut list), Out::NULL), 0);
    list
}

impl Setup {
    pub fn new() -> Self {
        Self::with(cl::QUEUE_PROFILING_ENABLE)
    }

    pub fn with(flags: u64) -> Self {
        let device = devices()[0];
        let context = made(|e| clCreateContext(In::NULL, 1, In::of(&[device]), None, 0, e)).unwrap();
        let queue = made(|e| clCreateCommandQueue(context, device, flags, e)).unwrap();
        Self { device, context, queue }
    }

    pub fn buffer(&self, flags: u64, bytes: usize, host: usize) -> Handle {
        made(|e| clCreateBuffer(self.context, flags, bytes, host, e)).unwrap()
    }

    pub fn program(&self, text: &str) -> Handle {
        let text = CString::new(text).unwrap();
        let strings = [In::from_text(&text)];
        made(|e| clCreateProgramWithSource(self.context, 1, In::of(&strings), In::NULL, e)).unwrap()
    }

    /// Returns the kernel of a source, without arguments.
    pub fn kernel(&self, text: &str, name: &str) -> Handle {
        let program = self.program(text);
        assert_eq!(clBuildProgram(program, 0, In::NULL, In::NULL, None, 0), 0);
        let name = CString::new(name).unwrap();
        let kernel = made(|e| clCreateKernel(program, In::from_text(&name), e)).unwrap();
        assert_eq!(clReleaseProgram(program), 0);
        kernel
    }

    pub fn read(&self, buffer: Handle, bytes: usize) -> Vec<u8> {
        let mut out = vec![0u8; bytes];
        let to = out.as_mut_ptr().expose_provenance();
        assert_eq!(clEnqueueReadBuffer(self.queue, buffer, 1, 0, bytes, to, 0, In::NULL, Out::NULL), 0);
        out
    }

    pub fn read_ints(&self, buffer: Handle, count: usize) -> Vec<i32> {
        let bytes = self.read(buffer, count * 4);
        bytes.chunks_exact(4).map(|b| i32::from_ne_bytes(b.try_into().unwrap())).collect()
    }

    pub fn launch(&self, kernel: Handle, items: usize, waits: &[Handle], event: Out<Handle>) -> i32 {
        let list = if waits.is_empty() { In::NULL } else { In::of(waits) };
        let global = [items];
        clEnqueueNDRangeKernel(
            self.queue,
            kernel,
            1,
            In::NULL,
            In::of(&global),
            In::NULL,
            waits.len() as u32,
            list,
            event,
        )
    }
}

/// Sets an argument to these bytes.
pub fn set(kernel: Handle, index: u32, bytes: &[u8]) -> i32 {
    clSetKernelArg(kernel, index, bytes.len(), In::of(bytes))
}

pub fn set_buffer(kernel: Handle, index: u32, buffer: Handle) {
    assert_eq!(set(kernel, index, &buffer.0.to_ne_bytes()), 0);
}

/// Returns the answer to a query.
pub fn asked(query: impl Fn(usize, Out<u8>, Out<usize>) -> i32) -> Result<Vec<u8>, i32> {
    let mut size = 0;
    match query(0, Out::NULL, Out::to(&mut size)) {
        0 => {}
        code => return Err(code),
    }
    let mut answer = vec![0u8; size];
    match query(size, Out::to_list(&mut answer), Out::NULL) {
        0 => Ok(answer),
        code => Err(code),
    }
}

pub fn text(answer: Result<Vec<u8>, i32>) -> String {
    String::from_utf8(answer.unwrap()).unwrap().trim_end_matches('\0').to_string()
}

pub fn number(answer: Result<Vec<u8>, i32>) -> u64 {
    let mut bytes = answer.unwrap();
    bytes.resize(8, 0);
    u64::from_ne_bytes(bytes.try_into().unwrap())
}

/// Returns the address of memory that the test keeps.
pub fn address<T>(list: &mut [T]) -> usize {
    list.as_mut_ptr().expose_provenance()
}
