//! Incorrect calls return the error codes that the standard defines, and never crash.

use crate::setup::*;
use aethercl_icd::api::entry::*;
use aethercl_icd::cl;
use aethercl_icd::raw::{Handle, In, Out};

#[test]
fn handles_of_nothing_of_another_kind_and_released_ones_are_told_apart() {
    let s = Setup::new();
    for wrong in [Handle::NULL, Handle(0x1234), s.queue, s.device] {
        assert_eq!(clRetainContext(wrong), cl::INVALID_CONTEXT);
        assert_eq!(made(|e| clCreateBuffer(wrong, 0, 16, 0, e)), Err(cl::INVALID_CONTEXT));
        assert_eq!(clReleaseMemObject(wrong), cl::INVALID_MEM_OBJECT);
        assert_eq!(clReleaseKernel(wrong), cl::INVALID_KERNEL);
        assert_eq!(clReleaseProgram(wrong), cl::INVALID_PROGRAM);
        assert_eq!(clReleaseEvent(wrong), cl::INVALID_EVENT);
        assert_eq!(clReleaseSampler(wrong), cl::INVALID_SAMPLER);
    }
    assert_eq!(clFinish(s.context), cl::INVALID_COMMAND_QUEUE);
    let b = s.buffer(0, 16, 0);
    assert_eq!((clRetainMemObject(b), clReleaseMemObject(b), clReleaseMemObject(b)), (0, 0, 0));
    assert_eq!(clEnqueueReadBuffer(s.queue, b, 1, 0, 4, 1, 0, In::NULL, Out::NULL), cl::INVALID_MEM_OBJECT);
}

#[test]
fn sizes_flags_and_pointers_are_looked_at() {
    let s = Setup::new();
    let buffer = |flags, bytes, host| made(|e| clCreateBuffer(s.context, flags, bytes, host, e));
    assert_eq!(buffer(0, 0, 0), Err(cl::INVALID_BUFFER_SIZE));
    assert_eq!(buffer(0, usize::MAX, 0), Err(cl::INVALID_BUFFER_SIZE));
    assert_eq!(buffer(cl::MEM_READ_ONLY | cl::MEM_WRITE_ONLY, 4, 0), Err(cl::INVALID_VALUE));
    assert_eq!(buffer(1 << 60, 4, 0), Err(cl::INVALID_VALUE));
    assert_eq!(buffer(cl::MEM_COPY_HOST_PTR, 4, 0), Err(cl::INVALID_HOST_PTR));
    assert_eq!(buffer(0, 4, 16), Err(cl::INVALID_HOST_PTR));
    let b = s.buffer(cl::MEM_HOST_NO_ACCESS, 16, 0);
    let mut out = [0u8; 16];
    let to = address(&mut out);
    let read =
        |offset, bytes, to| clEnqueueReadBuffer(s.queue, b, 1, offset, bytes, to, 0, In::NULL, Out::NULL);
    assert_eq!(read(0, 17, to), cl::INVALID_VALUE);
    assert_eq!(read(usize::MAX, 2, to), cl::INVALID_VALUE);
    assert_eq!(read(0, 4, 0), cl::INVALID_VALUE);
    assert_eq!(read(0, 4, to), cl::INVALID_OPERATION);
    let fill = clEnqueueFillBuffer(s.queue, b, In::of(&[1u8; 3]), 3, 0, 15, 0, In::NULL, Out::NULL);
    assert_eq!(fill, cl::INVALID_VALUE);
    let marker = clEnqueueMarkerWithWaitList(s.queue, 1, In::NULL, Out::NULL);
    assert_eq!(marker, cl::INVALID_EVENT_WAIT_LIST);
    let marker = clEnqueueMarkerWithWaitList(s.queue, 1, In::of(&[s.queue]), Out::NULL);
    assert_eq!(marker, cl::INVALID_EVENT_WAIT_LIST);
    assert_eq!(clReleaseMemObject(b), 0);
    let mut platform = Handle::NULL;
    assert_eq!(clGetPlatformIDs(0, Out::to(&mut platform), Out::NULL), cl::INVALID_VALUE);
    assert_eq!(clGetPlatformIDs(1, Out::NULL, Out::NULL), cl::INVALID_VALUE);
    let cpu = clGetDeviceIDs(Handle::NULL, cl::DEVICE_TYPE_CPU, 1, Out::to(&mut platform), Out::NULL);
    assert_eq!(cpu, cl::DEVICE_NOT_FOUND);
    let context = made(|e| clCreateContext(In::of(&[0x1084, 5, 0]), 1, In::of(&[s.device]), None, 0, e));
    assert_eq!(context, Err(cl::INVALID_PLATFORM));
}

#[test]
fn arguments_and_ranges_are_looked_at() {
    let s = Setup::new();
    let kernel =
        s.kernel("kernel void k(global int *x, local int *t, int n) { t[0] = n; x[0] = t[0]; }", "k");
    assert_eq!(s.launch(kernel, 1, &[], Out::NULL), cl::INVALID_KERNEL_ARGS);
    let b = s.buffer(0, 4, 0);
    assert_eq!(set(kernel, 3, &[0; 4]), cl::INVALID_ARG_INDEX);
    assert_eq!(set(kernel, 0, &[0; 4]), cl::INVALID_ARG_SIZE);
    assert_eq!(set(kernel, 0, &[1; 8]), cl::INVALID_MEM_OBJECT);
    assert_eq!(set(kernel, 1, &[1; 8]), cl::INVALID_ARG_VALUE);
    assert_eq!(clSetKernelArg(kernel, 1, 0, In::NULL), cl::INVALID_ARG_SIZE);
    assert_eq!(set(kernel, 2, &[1; 8]), cl::INVALID_ARG_SIZE);
    assert_eq!(clSetKernelArg(kernel, 2, 4, In::NULL), cl::INVALID_ARG_VALUE);
    set_buffer(kernel, 0, b);
    assert_eq!((clSetKernelArg(kernel, 1, 4, In::NULL), set(kernel, 2, &9i32.to_ne_bytes())), (0, 0));
    let run = |n: u32, global: &[usize; 3], local: &[usize; 3]| {
        let (global, local) = (In::of(global), In::of(local));
        clEnqueueNDRangeKernel(s.queue, kernel, n, In::NULL, global, local, 0, In::NULL, Out::NULL)
    };
    assert_eq!(run(0, &[1; 3], &[1; 3]), cl::INVALID_WORK_DIMENSION);
    assert_eq!(run(4, &[1; 3], &[1; 3]), cl::INVALID_WORK_DIMENSION);
    assert_eq!(run(1, &[10, 1, 1], &[3, 1, 1]), cl::INVALID_WORK_GROUP_SIZE);
    assert_eq!(run(1, &[10, 1, 1], &[0, 1, 1]), cl::INVALID_WORK_GROUP_SIZE);
    assert_eq!(run(3, &[1024; 3], &[64, 64, 64]), cl::INVALID_WORK_GROUP_SIZE);
    assert_eq!(run(1, &[1 << 20, 1, 1], &[1 << 20, 1, 1]), cl::INVALID_WORK_ITEM_SIZE);
    assert_eq!(clSetKernelArg(kernel, 1, 1 << 20, In::NULL), 0);
    assert_eq!(run(1, &[1; 3], &[1; 3]), cl::OUT_OF_RESOURCES);
    assert_eq!(clSetKernelArg(kernel, 1, 4, In::NULL), 0);
    assert_eq!(run(1, &[1; 3], &[1; 3]), 0);
    assert_eq!(s.read_ints(b, 1), [9]);
    assert_eq!((clReleaseKernel(kernel), clReleaseMemObject(b)), (0, 0));
}

#[test]
fn what_does_not_exist_says_so() {
    let s = Setup::new();
    assert_eq!(made(|e| clCreatePipe(s.context, 0, 1, 1, In::NULL, e)), Err(cl::INVALID_OPERATION));
    let native = clEnqueueNativeKernel(s.queue, None, 0, 0, 0, In::NULL, In::NULL, 0, In::NULL, Out::NULL);
    assert_eq!(native, cl::INVALID_OPERATION);
}

/// A kernel may write a read-only buffer. The standard leaves this undefined, but programs do it.
#[test]
fn a_kernel_writes_a_buffer_that_was_made_to_be_read() {
    let s = Setup::new();
    let b = s.buffer(cl::MEM_READ_ONLY, 16, 0);
    let kernel =
        s.kernel("kernel void k(global int *x) { x[get_global_id(0)] = get_global_id(0) + 5; }", "k");
    set_buffer(kernel, 0, b);
    assert_eq!(s.launch(kernel, 4, &[], Out::NULL), 0);
    assert_eq!(s.read_ints(b, 4), [5, 6, 7, 8]);
    assert_eq!((clReleaseKernel(kernel), clReleaseMemObject(b)), (0, 0));
}
