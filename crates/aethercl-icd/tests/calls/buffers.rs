use crate::setup::*;
use aethercl_icd::api::entry::*;
use aethercl_icd::cl;
use aethercl_icd::raw::{Handle, In, Out};

#[test]
fn bytes_come_back_through_every_way() {
    let s = Setup::new();
    let mut data: Vec<u8> = (0..64).collect();
    let copied = s.buffer(cl::MEM_COPY_HOST_PTR, 64, address(&mut data));
    assert_eq!(s.read(copied, 64), data);
    let b = s.buffer(0, 64, 0);
    let from = address(&mut data);
    assert_eq!(clEnqueueWriteBuffer(s.queue, b, 1, 8, 16, from, 0, In::NULL, Out::NULL), 0);
    assert_eq!(s.read(b, 24)[8..], data[..16]);
    assert_eq!(clEnqueueCopyBuffer(s.queue, copied, b, 0, 32, 32, 0, In::NULL, Out::NULL), 0);
    assert_eq!(s.read(b, 64)[32..], data[..32]);
    let overlap = clEnqueueCopyBuffer(s.queue, b, b, 0, 16, 32, 0, In::NULL, Out::NULL);
    assert_eq!(overlap, cl::MEM_COPY_OVERLAP);
    for length in [1usize, 2, 4, 8, 16, 32, 64] {
        let pattern: Vec<u8> = (0..length as u8).map(|i| i + 100).collect();
        assert_eq!(
            clEnqueueFillBuffer(s.queue, b, In::of(&pattern), length, 0, 64, 0, In::NULL, Out::NULL),
            0
        );
        let want: Vec<u8> = pattern.iter().copied().cycle().take(64).collect();
        assert_eq!(s.read(b, 64), want, "pattern of {length}");
    }
    for mem in [copied, b] {
        assert_eq!(clReleaseMemObject(mem), 0);
        assert_eq!(clReleaseMemObject(mem), cl::INVALID_MEM_OBJECT);
    }
}

#[test]
#[allow(clippy::too_many_lines)] // calls of fourteen arguments
fn boxes_go_to_and_from_the_host_and_between_buffers() {
    let s = Setup::new();
    // Writes the middle 2 × 2 of 4 × 4 host bytes into a row pitch of 8 at (1, 1).
    let mut host: Vec<u8> = (0..16).collect();
    let b = s.buffer(0, 64, 0);
    let zero = [0u8];
    assert_eq!(clEnqueueFillBuffer(s.queue, b, In::of(&zero), 1, 0, 64, 0, In::NULL, Out::NULL), 0);
    let (one, region, none) = ([1usize, 1, 0], [2usize, 2, 1], [0usize, 0, 0]);
    let at = address(&mut host);
    let code = clEnqueueWriteBufferRect(
        s.queue,
        b,
        1,
        In::of(&one),
        In::of(&one),
        In::of(&region),
        8,
        0,
        4,
        0,
        at,
        0,
        In::NULL,
        Out::NULL,
    );
    assert_eq!(code, 0);
    let got = s.read(b, 64);
    assert_eq!((&got[9..11], &got[17..19]), (&[5u8, 6][..], &[9u8, 10][..]));
    assert_eq!(got.iter().filter(|v| **v != 0).count(), 4);
    let to = [4usize, 2, 0];
    let code = clEnqueueCopyBufferRect(
        s.queue,
        b,
        b,
        In::of(&one),
        In::of(&to),
        In::of(&region),
        8,
        0,
        8,
        0,
        0,
        In::NULL,
        Out::NULL,
    );
    assert_eq!(code, 0);
    let mut out = vec![0u8; 4];
    let code = clEnqueueReadBufferRect(
        s.queue,
        b,
        1,
        In::of(&to),
        In::of(&none),
        In::of(&region),
        8,
        0,
        2,
        0,
        address(&mut out),
        0,
        In::NULL,
        Out::NULL,
    );
    assert_eq!((code, out), (0, vec![5, 6, 9, 10]));
    assert_eq!(clReleaseMemObject(b), 0);
}

#[test]
fn parts_are_the_buffer_and_begin_where_they_may() {
    let s = Setup::new();
    let b = s.buffer(0, 1024, 0);
    let part = |origin: usize, size: usize| {
        let region = [origin, size];
        made(|e| clCreateSubBuffer(b, 0, cl::BUFFER_CREATE_TYPE_REGION, In::of(&region), e))
    };
    assert_eq!(part(100, 16), Err(cl::MISALIGNED_SUB_BUFFER_OFFSET));
    assert_eq!(part(512, 513), Err(cl::INVALID_VALUE));
    assert_eq!(part(512, 0), Err(cl::INVALID_BUFFER_SIZE));
    let p = part(512, 512).unwrap();
    let kernel =
        s.kernel("kernel void k(global int *x) { x[get_global_id(0)] = get_global_id(0) + 1; }", "k");
    set_buffer(kernel, 0, p);
    assert_eq!(s.launch(kernel, 4, &[], Out::NULL), 0);
    assert_eq!(s.read_ints(p, 4), [1, 2, 3, 4]);
    assert_eq!(s.read_ints(b, 132)[128..], [1, 2, 3, 4]);
    let info = |name| asked(|n, v, r| clGetMemObjectInfo(p, name, n, v, r));
    assert_eq!(number(info(cl::MEM_OFFSET)), 512);
    assert_eq!(number(info(cl::MEM_ASSOCIATED_MEMOBJECT)), b.0 as u64);
    // The sub-buffer keeps the buffer alive, so its handle stays valid.
    assert_eq!(clReleaseMemObject(b), 0);
    assert_eq!(number(asked(|n, v, r| clGetMemObjectInfo(b, cl::MEM_SIZE, n, v, r))), 1024);
    assert_eq!(clReleaseMemObject(p), 0);
    assert_eq!(clReleaseKernel(kernel), 0);
    assert_eq!(clRetainMemObject(b), cl::INVALID_MEM_OBJECT);
}

#[test]
fn mapping_shows_the_programs_memory_or_its_own() {
    let s = Setup::new();
    let mut own = vec![7i32; 16];
    let at = address(&mut own);
    for (flags, host) in [(cl::MEM_USE_HOST_PTR, at), (cl::MEM_ALLOC_HOST_PTR, 0), (0, 0)] {
        let b = s.buffer(flags, 64, host);
        let map = |how: u64| {
            made(|e| clEnqueueMapBuffer(s.queue, b, 1, how, 16, 32, 0, In::NULL, Out::NULL, e)).unwrap()
        };
        let p = map(cl::MAP_WRITE_INVALIDATE_REGION);
        if host != 0 {
            assert_eq!(p.0, host + 16);
        }
        assert_eq!(number(asked(|n, v, r| clGetMemObjectInfo(b, cl::MEM_MAP_COUNT, n, v, r))), 1);
        aethercl_icd::raw::Host::at(p.0).unwrap().write(&[9; 32]);
        assert_eq!(clEnqueueUnmapMemObject(s.queue, b, p.0, 0, In::NULL, Out::NULL), 0);
        assert_eq!(clEnqueueUnmapMemObject(s.queue, b, p.0, 0, In::NULL, Out::NULL), cl::INVALID_VALUE);
        assert_eq!(s.read(b, 64)[16..48], [9; 32]);
        let p = map(cl::MAP_READ);
        assert_eq!(aethercl_icd::raw::Host::at(p.0).unwrap().bytes(32), [9; 32]);
        assert_eq!(clEnqueueUnmapMemObject(s.queue, b, p.0, 0, In::NULL, Out::NULL), 0);
        assert_eq!(clReleaseMemObject(b), 0);
    }
    assert_eq!(clFinish(s.queue), 0);
}

#[test]
fn buffers_move_between_the_devices_of_a_context() {
    let two = &devices()[..2];
    let context = made(|e| clCreateContext(In::NULL, 2, In::of(two), None, 0, e)).unwrap();
    let queues: Vec<Handle> =
        two.iter().map(|d| made(|e| clCreateCommandQueue(context, *d, 0, e)).unwrap()).collect();
    let mut data = vec![1i32, 2, 3, 4];
    let b = made(|e| clCreateBuffer(context, cl::MEM_COPY_HOST_PTR, 16, address(&mut data), e)).unwrap();
    let s = Setup { device: two[0], context, queue: queues[0] };
    let kernel = s.kernel("kernel void k(global int *x) { x[get_global_id(0)] *= 10; }", "k");
    set_buffer(kernel, 0, b);
    let global = [4usize];
    for queue in &queues {
        let mut event = Handle::NULL;
        let to = Out::to(&mut event);
        let code =
            clEnqueueNDRangeKernel(*queue, kernel, 1, In::NULL, In::of(&global), In::NULL, 0, In::NULL, to);
        assert_eq!(code, 0);
        assert_eq!(clWaitForEvents(1, In::of(&[event])), 0);
        assert_eq!(clReleaseEvent(event), 0);
    }
    assert_eq!(s.read_ints(b, 4), [100, 200, 300, 400]);
    assert_eq!((clReleaseMemObject(b), clReleaseKernel(kernel), clReleaseCommandQueue(queues[1])), (0, 0, 0));
}

#[test]
fn destructors_are_called_the_last_first() {
    use std::sync::Mutex;
    static SEEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    extern "C" fn note(_: Handle, data: usize) {
        SEEN.lock().unwrap().push(data);
    }
    let s = Setup::new();
    let b = s.buffer(0, 16, 0);
    for n in [1, 2] {
        assert_eq!(clSetMemObjectDestructorCallback(b, Some(note), n), 0);
    }
    assert_eq!(clReleaseMemObject(b), 0);
    assert_eq!(*SEEN.lock().unwrap(), [2, 1]);
}
