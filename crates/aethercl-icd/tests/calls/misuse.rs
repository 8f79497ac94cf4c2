//! Wrong calls are error codes: those of the standard where it has one, and never anything else.

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
    let image = made(|e| clCreateImage(s.context, 0, In::NULL, In::NULL, 0, e));
    assert_eq!(image, Err(cl::INVALID_OPERATION));
    assert_eq!(made(|e| clCreateSampler(s.context, 0, 0, 0, e)), Err(cl::INVALID_OPERATION));
    assert_eq!(made(|e| clCreatePipe(s.context, 0, 1, 1, In::NULL, e)), Err(cl::INVALID_OPERATION));
    let native = clEnqueueNativeKernel(s.queue, None, 0, 0, 0, In::NULL, In::NULL, 0, In::NULL, Out::NULL);
    assert_eq!(native, cl::INVALID_OPERATION);
    let mut formats = 9;
    assert_eq!(clGetSupportedImageFormats(s.context, 0, 0, 0, Out::NULL, Out::to(&mut formats)), 0);
    assert_eq!(formats, 0);
}

/// Any sequence of calls with any arguments comes to codes: no panic, no crash, and what is released is gone.
#[test]
#[allow(clippy::too_many_lines)] // a table of calls
fn random_calls_come_to_codes() {
    let s = Setup::with(cl::QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    let mut seed = 0x2545_f491_4f6c_dd1du64;
    let mut random = move |n: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 11) as usize % n
    };
    let program = s.program("kernel void k(global int *x, int n) { x[get_global_id(0) % 4] = n; }");
    let mut handles = vec![Handle::NULL, Handle(8), s.context, s.queue, s.device, program];
    let mut host = vec![0u8; 4096];
    let at = address(&mut host);
    let mut codes = std::collections::BTreeSet::new();
    let calls = std::env::var("AETHERCL_ICD_CALLS").ok().and_then(|n| n.parse().ok()).unwrap_or(4000);
    for _ in 0..calls {
        let mut h = || handles[random(handles.len())];
        let (a, b, c) = (h(), h(), h());
        let size = [0, 1, 4, 16, 64, 5000, usize::MAX][random(7)];
        let offset = [0, 4, 128, usize::MAX - 3][random(4)];
        let n = random(4) as u32;
        let waits = [c];
        let (count, list) = if n == 0 { (1, In::of(&waits)) } else { (0, In::NULL) };
        let mut event = Handle::NULL;
        let mut new = Handle::NULL;
        let code = match random(18) {
            0 => made(|e| clCreateBuffer(a, [0, 1, 4, 7][n as usize], size.min(4096), 0, e)).map_or_else(
                |c| c,
                |m| {
                    new = m;
                    0
                },
            ),
            1 => clReleaseMemObject(a),
            2 => clEnqueueReadBuffer(a, b, n, offset, size.min(4096), at, count, list, Out::to(&mut event)),
            3 => clEnqueueWriteBuffer(a, b, n, offset, size.min(4096), at, count, list, Out::to(&mut event)),
            4 => clEnqueueCopyBuffer(a, b, c, offset, 0, size, count, list, Out::to(&mut event)),
            5 => clEnqueueFillBuffer(a, b, In::of(&[1u8; 4]), 4, offset, size, count, list, Out::NULL),
            6 => clBuildProgram(a, 0, In::NULL, In::NULL, None, 0),
            7 => {
                let name = c"k";
                made(|e| clCreateKernel(a, In::from_text(name), e)).map_or_else(
                    |c| c,
                    |m| {
                        new = m;
                        0
                    },
                )
            }
            8 => set(a, n, &b.0.to_ne_bytes()),
            9 => set(a, n, &[1; 4]),
            10 => {
                let global = [size.min(64)];
                clEnqueueNDRangeKernel(a, b, n, In::NULL, In::of(&global), In::NULL, count, list, Out::NULL)
            }
            11 => made(|e| clCreateUserEvent(a, e)).map_or_else(
                |c| c,
                |m| {
                    new = m;
                    clSetUserEventStatus(m, -(n as i32))
                },
            ),
            12 => clEnqueueMarkerWithWaitList(a, count, list, Out::to(&mut event)),
            13 => clReleaseEvent(a),
            14 => clReleaseKernel(a),
            15 => asked(|size, v, r| clGetMemObjectInfo(a, cl::MEM_TYPE + n, size, v, r))
                .map_or_else(|c| c, |_| 0),
            16 => {
                let region = [offset, size];
                made(|e| clCreateSubBuffer(a, 0, cl::BUFFER_CREATE_TYPE_REGION, In::of(&region), e))
                    .map_or_else(
                        |c| c,
                        |m| {
                            new = m;
                            0
                        },
                    )
            }
            _ => {
                let mapped =
                    made(|e| clEnqueueMapBuffer(a, b, 1, n.into(), offset, size, 0, In::NULL, Out::NULL, e));
                mapped.map_or_else(|c| c, |p| clEnqueueUnmapMemObject(a, b, p.0, 0, In::NULL, Out::NULL))
            }
        };
        codes.insert(code);
        handles.extend([new, event].into_iter().filter(|h| *h != Handle::NULL));
        if handles.len() > 60 {
            for old in handles.drain(6..30) {
                let _ = (clReleaseMemObject(old), clReleaseKernel(old), clReleaseEvent(old));
            }
        }
    }
    assert!(
        codes.contains(&0) && codes.len() > 8 && codes.iter().all(|c| (-72..=0).contains(c)),
        "{codes:?}"
    );
    for old in handles.drain(5..) {
        while clReleaseMemObject(old) == 0 || clReleaseKernel(old) == 0 || clReleaseEvent(old) == 0 {}
        let _ = clReleaseProgram(old);
    }
    assert_eq!(clFinish(s.queue), 0);
}
