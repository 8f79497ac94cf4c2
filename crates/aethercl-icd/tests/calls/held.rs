//! References between objects, and the state after a failed call.

use crate::setup::*;
use aethercl_icd::api::entry::*;
use aethercl_icd::cl;
use aethercl_icd::raw::{Handle, In, Out};
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn a_kernel_does_not_keep_the_buffers_that_are_its_arguments() {
    static GONE: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn note(_: Handle, _: usize) {
        GONE.fetch_add(1, Ordering::Relaxed);
    }
    let s = Setup::new();
    let kernel = s.kernel("kernel void k(global int *x) { x[0] = 1; }", "k");
    let buffer = s.buffer(0, 64, 0);
    assert_eq!(clSetMemObjectDestructorCallback(buffer, Some(note), 0), 0);
    set_buffer(kernel, 0, buffer);
    assert_eq!(s.launch(kernel, 1, &[], Out::NULL), 0);
    assert_eq!(clFinish(s.queue), 0);
    assert_eq!(clReleaseMemObject(buffer), 0);
    // The command that used it may not have ended yet.
    for _ in 0..1000 {
        if GONE.load(Ordering::Relaxed) == 1 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(GONE.load(Ordering::Relaxed), 1);
    assert_eq!(s.launch(kernel, 1, &[], Out::NULL), cl::INVALID_KERNEL_ARGS);
    assert_eq!(clReleaseKernel(kernel), 0);
}

#[test]
fn a_blocking_call_that_fails_leaves_no_event_and_no_mapping_and_takes_no_other() {
    let s = Setup::new();
    let buffer = s.buffer(0, 64, 0);
    let map = |waits: &[Handle], event: &mut Handle| {
        let (n, list) = if waits.is_empty() { (0, In::NULL) } else { (waits.len() as u32, In::of(waits)) };
        made(|e| clEnqueueMapBuffer(s.queue, buffer, 1, cl::MAP_WRITE, 0, 64, n, list, Out::to(event), e))
    };
    let count = || number(asked(|n, v, r| clGetMemObjectInfo(buffer, cl::MEM_MAP_COUNT, n, v, r)));
    let mut good = Handle::NULL;
    let at = map(&[], &mut good).unwrap();
    assert!(good != Handle::NULL && count() == 1);
    let failed = made(|e| clCreateUserEvent(s.context, e)).unwrap();
    assert_eq!(clSetUserEventStatus(failed, -7), 0);
    let mut none = Handle::NULL;
    assert!(map(&[failed], &mut none).is_err());
    assert_eq!((none, count()), (Handle::NULL, 1));
    let mut data = [0u8; 64];
    let to = address(&mut data);
    let read = clEnqueueReadBuffer(s.queue, buffer, 1, 0, 64, to, 1, In::of(&[failed]), Out::to(&mut none));
    assert_eq!((read, none), (cl::EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, Handle::NULL));
    let unmap = || clEnqueueUnmapMemObject(s.queue, buffer, at.0, 0, In::NULL, Out::NULL);
    assert_eq!((unmap(), unmap()), (0, cl::INVALID_VALUE));
    assert_eq!(clFinish(s.queue), 0);
    for event in [good, failed] {
        assert_eq!(clReleaseEvent(event), 0);
    }
    assert_eq!(clReleaseMemObject(buffer), 0);
}

#[test]
fn a_binary_outlives_a_build_of_it_that_fails() {
    let s = Setup::new();
    // The compiled form of a faulty program is its source; the error appears in the build.
    let source = s.program("kernel void k(global int *x) { x[0] = 1; }");
    assert_eq!(clBuildProgram(source, 0, In::NULL, In::NULL, None, 0), 0);
    let sizes = asked(|n, v, r| clGetProgramInfo(source, cl::PROGRAM_BINARY_SIZES, n, v, r));
    let mut binary = vec![0u8; number(sizes) as usize];
    let mut places = address(&mut binary).to_ne_bytes();
    let code = clGetProgramInfo(source, cl::PROGRAM_BINARIES, 8, Out::to_list(&mut places), Out::NULL);
    assert_eq!(code, 0);
    let broken = String::from_utf8(binary).unwrap().replace("x[0] = 1", "x[0] = y").into_bytes();
    let program = made(|e| {
        let (lengths, texts) = ([broken.len()], [In::of(&broken)]);
        let status = Out::NULL;
        clCreateProgramWithBinary(
            s.context,
            1,
            In::of(&[s.device]),
            In::of(&lengths),
            In::of(&texts),
            status,
            e,
        )
    });
    let program = program.unwrap();
    let build = || clBuildProgram(program, 0, In::NULL, In::NULL, None, 0);
    assert_eq!(build(), cl::BUILD_PROGRAM_FAILURE);
    // Without its source this would be CL_INVALID_BINARY.
    assert_eq!(build(), cl::BUILD_PROGRAM_FAILURE);
    for program in [program, source] {
        assert_eq!(clReleaseProgram(program), 0);
    }
}

#[test]
fn sub_groups_are_offered_as_they_are() {
    for device in devices() {
        let ask = |name| asked(|n, v, r| clGetDeviceInfo(device, name, n, v, r));
        let independent = number(ask(cl::DEVICE_SUB_GROUP_INDEPENDENT_FORWARD_PROGRESS)) != 0;
        let extensions = text(ask(cl::DEVICE_EXTENSIONS));
        assert_eq!(extensions.split(' ').any(|e| e == "cl_khr_subgroups"), independent);
        assert!(number(ask(cl::DEVICE_MAX_NUM_SUB_GROUPS)) > 0 || !extensions.contains("subgroup"));
    }
    let s = Setup::new();
    let text = "#pragma OPENCL EXTENSION cl_khr_subgroups : enable\nkernel void k(global int *x) { x[0] = sub_group_all(1); }";
    assert_eq!(clReleaseKernel(s.kernel(text, "k")), 0);
}
