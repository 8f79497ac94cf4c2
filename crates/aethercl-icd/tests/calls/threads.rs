use crate::setup::*;
use aethercl_icd::api::entry::*;
use aethercl_icd::raw::{Handle, In, Out};

/// Runs eight threads on buffers of one context. Each has a separate queue, and all share one more.
#[test]
fn threads_use_one_context() {
    let s = Setup::new();
    let text = "kernel void add(global int *x, int n) { atomic_add(x, n); }";
    let total = s.buffer(0, 4, 0);
    assert_eq!(clEnqueueFillBuffer(s.queue, total, In::of(&[0u8]), 1, 0, 4, 0, In::NULL, Out::NULL), 0);
    assert_eq!(clFinish(s.queue), 0);
    std::thread::scope(|scope| {
        for thread in 0..8i32 {
            let (context, device, shared) = (s.context, s.device, s.queue);
            scope.spawn(move || {
                let own = made(|e| clCreateCommandQueue(context, device, 0, e)).unwrap();
                assert_eq!((clRetainContext(context), clRetainCommandQueue(shared)), (0, 0));
                let mine = Setup { device, context, queue: own };
                let kernel = mine.kernel(text, "add");
                for round in 0..20 {
                    let b = mine.buffer(0, 64, 0);
                    let pattern = (thread * 100 + round).to_ne_bytes();
                    let mut filled = Handle::NULL;
                    let (to, none) = (Out::to(&mut filled), In::NULL);
                    assert_eq!(clEnqueueFillBuffer(own, b, In::of(&pattern), 4, 0, 64, 0, none, to), 0);
                    set_buffer(kernel, 0, total);
                    assert_eq!(set(kernel, 1, &1i32.to_ne_bytes()), 0);
                    let queue = if round % 2 == 0 { own } else { shared };
                    let (global, waits) = ([4usize], [filled]);
                    let code = clEnqueueNDRangeKernel(
                        queue,
                        kernel,
                        1,
                        In::NULL,
                        In::of(&global),
                        In::NULL,
                        1,
                        In::of(&waits),
                        Out::NULL,
                    );
                    assert_eq!(code, 0);
                    assert_eq!(mine.read_ints(b, 16), [thread * 100 + round; 16]);
                    assert_eq!((clReleaseEvent(filled), clReleaseMemObject(b)), (0, 0));
                }
                assert_eq!((clFinish(own), clFinish(shared)), (0, 0));
                assert_eq!((clReleaseKernel(kernel), clReleaseCommandQueue(shared)), (0, 0));
            });
        }
    });
    assert_eq!(s.read_ints(total, 1), [8 * 20 * 4]);
    assert_eq!(clReleaseMemObject(total), 0);
}
