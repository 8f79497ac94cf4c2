use crate::setup::*;
use aethercl_icd::api::entry::*;
use aethercl_icd::cl;
use aethercl_icd::raw::{Handle, In, Out};
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

const ADD: &str =
    "kernel void add(global int *x, int n) { x[get_global_id(0)] = x[get_global_id(0)] * 10 + n; }";

fn status(event: Handle) -> i32 {
    number(asked(|n, v, r| clGetEventInfo(event, cl::EVENT_COMMAND_EXECUTION_STATUS, n, v, r))) as u32 as i32
}

#[test]
fn commands_wait_for_what_their_lists_say() {
    let s = Setup::with(cl::QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    let mut zero = vec![0i32];
    let b = s.buffer(cl::MEM_COPY_HOST_PTR, 4, address(&mut zero));
    let kernel = s.kernel(ADD, "add");
    set_buffer(kernel, 0, b);
    let gate = made(|e| clCreateUserEvent(s.context, e)).unwrap();
    let mut events = [Handle::NULL; 3];
    // Enqueued as 1, 2, 3 and ordered by events as 3, 2, 1; each command uses the arguments from its call.
    let order = [gate, gate, gate];
    let later = [2usize, 1, 0];
    let gates: Vec<Handle> = (0..3).map(|_| made(|e| clCreateUserEvent(s.context, e)).unwrap()).collect();
    for n in 0..3 {
        assert_eq!(set(kernel, 1, &(n as i32 + 1).to_ne_bytes()), 0);
        let waits = [order[n], gates[n]];
        assert_eq!(s.launch(kernel, 1, &waits, Out::to(&mut events[n])), 0);
    }
    assert_eq!(clSetUserEventStatus(gate, 0), 0);
    for n in later {
        assert!(status(events[n]) > 0);
        assert_eq!(clSetUserEventStatus(gates[n], 0), 0);
        assert_eq!(clWaitForEvents(1, In::of(&events[n..])), 0);
        assert_eq!(status(events[n]), 0);
    }
    assert_eq!(s.read_ints(b, 1), [321]);
    for e in events.iter().chain(&gates).chain([&gate]) {
        assert_eq!(clReleaseEvent(*e), 0);
    }
    assert_eq!((clReleaseKernel(kernel), clReleaseMemObject(b)), (0, 0));
}

#[test]
fn a_failed_event_fails_those_that_list_it_and_no_others() {
    let s = Setup::new();
    let b = s.buffer(0, 4, 0);
    let gate = made(|e| clCreateUserEvent(s.context, e)).unwrap();
    let kernel = s.kernel("kernel void one(global int *x) { x[0] = 1; }", "one");
    set_buffer(kernel, 0, b);
    let (mut listed, mut behind) = (Handle::NULL, Handle::NULL);
    assert_eq!(s.launch(kernel, 1, &[gate], Out::to(&mut listed)), 0);
    assert_eq!(s.launch(kernel, 1, &[], Out::to(&mut behind)), 0);
    assert_eq!(clSetUserEventStatus(gate, -7), 0);
    assert_eq!(clSetUserEventStatus(gate, 0), cl::INVALID_OPERATION);
    let code = clWaitForEvents(2, In::of(&[listed, behind]));
    assert_eq!(code, cl::EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    assert_eq!(status(listed), cl::EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    assert_eq!((status(gate), status(behind)), (-7, 0));
    for e in [gate, listed, behind] {
        assert_eq!(clReleaseEvent(e), 0);
    }
    assert_eq!((clReleaseKernel(kernel), clReleaseMemObject(b)), (0, 0));
}

#[test]
fn barriers_and_markers_divide_a_queue_without_order() {
    let s = Setup::with(cl::QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    let b = s.buffer(0, 4, 0);
    let kernel = s.kernel("kernel void one(global int *x) { x[0] = 1; }", "one");
    set_buffer(kernel, 0, b);
    let gate = made(|e| clCreateUserEvent(s.context, e)).unwrap();
    let [mut first, mut free, mut marker, mut after] = [Handle::NULL; 4];
    assert_eq!(s.launch(kernel, 1, &[gate], Out::to(&mut first)), 0);
    assert_eq!(s.launch(kernel, 1, &[], Out::to(&mut free)), 0);
    assert_eq!(clWaitForEvents(1, In::of(&[free])), 0);
    assert_eq!(clEnqueueMarkerWithWaitList(s.queue, 0, In::NULL, Out::to(&mut marker)), 0);
    assert_eq!(clEnqueueBarrier(s.queue), 0);
    assert_eq!(s.launch(kernel, 1, &[], Out::to(&mut after)), 0);
    assert_eq!([first, marker, after].map(|e| status(e) > 0), [true; 3]);
    assert_eq!(clSetUserEventStatus(gate, 0), 0);
    assert_eq!(clWaitForEvents(2, In::of(&[marker, after])), 0);
    assert_eq!(status(first), 0);
    for e in [gate, first, free, marker, after] {
        assert_eq!(clReleaseEvent(e), 0);
    }
    assert_eq!((clReleaseKernel(kernel), clReleaseMemObject(b)), (0, 0));
}

#[test]
fn callbacks_come_for_each_status_and_also_afterwards() {
    static TO: Mutex<Option<Sender<i32>>> = Mutex::new(None);
    extern "C" fn note(_: Handle, status: i32, data: usize) {
        assert_eq!(data, 77);
        TO.lock().unwrap().as_ref().unwrap().send(status).unwrap();
    }
    let s = Setup::new();
    let (sender, receiver) = channel::<i32>();
    *TO.lock().unwrap() = Some(sender);
    let data = 77;
    let gate = made(|e| clCreateUserEvent(s.context, e)).unwrap();
    let mut event = Handle::NULL;
    assert_eq!(clEnqueueMarkerWithWaitList(s.queue, 1, In::of(&[gate]), Out::to(&mut event)), 0);
    for status in [cl::COMPLETE, cl::RUNNING, cl::SUBMITTED] {
        assert_eq!(clSetEventCallback(event, status as i32, Some(note), data), 0);
    }
    assert_eq!(clSetUserEventStatus(gate, 0), 0);
    let mut got: Vec<i32> = (0..3).map(|_| receiver.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
    assert_eq!(got, [2, 1, 0]);
    assert_eq!(clSetEventCallback(event, 0, Some(note), data), 0);
    got.push(receiver.recv_timeout(Duration::from_secs(60)).unwrap());
    assert_eq!(got[3], 0);
    assert_eq!(clSetEventCallback(event, 3, Some(note), data), cl::INVALID_VALUE);
    assert_eq!((clReleaseEvent(gate), clReleaseEvent(event)), (0, 0));
}

#[test]
fn times_are_those_of_the_model_and_do_not_depend_on_the_host() {
    let text = "kernel void work(global float *x) { float s = x[get_global_id(0)]; for (int i = 0; i < N; i++) s = s * 0.5f + 1.0f; x[get_global_id(0)] = s; }";
    let took = |steps: u32| {
        let s = Setup::new();
        let b = s.buffer(0, 4096 * 4, 0);
        let zero = [0u8];
        assert_eq!(clEnqueueFillBuffer(s.queue, b, In::of(&zero), 1, 0, 4096 * 4, 0, In::NULL, Out::NULL), 0);
        let kernel = s.kernel(&format!("#define N {steps}\n{text}"), "work");
        set_buffer(kernel, 0, b);
        let mut event = Handle::NULL;
        assert_eq!(s.launch(kernel, 4096, &[], Out::to(&mut event)), 0);
        assert_eq!(clFinish(s.queue), 0);
        let names = [
            cl::PROFILING_COMMAND_QUEUED,
            cl::PROFILING_COMMAND_SUBMIT,
            cl::PROFILING_COMMAND_START,
            cl::PROFILING_COMMAND_END,
        ];
        let times = names.map(|name| number(asked(|n, v, r| clGetEventProfilingInfo(event, name, n, v, r))));
        assert!(times.is_sorted() && times[3] > times[2], "{times:?}");
        assert_eq!((clReleaseEvent(event), clReleaseKernel(kernel), clReleaseMemObject(b)), (0, 0, 0));
        times[3] - times[2]
    };
    let (short, long) = (took(100), took(10_000));
    assert_eq!(short, took(100));
    assert!(long > 10 * short, "{short} and {long} ns");
    let s = Setup::with(0);
    let mut event = Handle::NULL;
    assert_eq!(clEnqueueMarker(s.queue, Out::to(&mut event)), 0);
    assert_eq!(clFinish(s.queue), 0);
    let asked = asked(|n, v, r| clGetEventProfilingInfo(event, cl::PROFILING_COMMAND_END, n, v, r));
    assert_eq!(asked, Err(cl::PROFILING_INFO_NOT_AVAILABLE));
    assert_eq!(clReleaseEvent(event), 0);
}
