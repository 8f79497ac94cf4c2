//! Random calls, in a separate process because a released handle may soon belong to another object.
#![allow(clippy::unwrap_used, clippy::panic)] // tests

#[allow(dead_code)] // other tests need more of it
#[path = "calls/setup.rs"]
mod setup;

use aethercl_icd::api::entry::*;
use aethercl_icd::cl;
use aethercl_icd::raw::{Handle, ImageDescriptor, ImageFormat, In, Out};
use setup::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Any sequence of calls with any arguments returns codes: no panic, no crash, and released objects are freed.
#[test]
#[allow(clippy::too_many_lines)] // a table of calls
fn random_calls_come_to_codes() {
    // Calls and commands catch panics, so this counts them.
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        hook(info);
    }));
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
        let code = match random(23) {
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
            17 => {
                let kind = [cl::MEM_OBJECT_IMAGE2D, cl::MEM_OBJECT_IMAGE3D, cl::MEM_OBJECT_IMAGE1D_BUFFER];
                let d = ImageDescriptor {
                    kind: *kind.get(n as usize).unwrap_or(&7),
                    width: [0, 1, 5, 64][random(4)],
                    height: random(4),
                    depth: random(3),
                    row_pitch: [0, 0, 3, 256][random(4)],
                    buffer: if n == 0 { Handle::NULL } else { b },
                    ..ImageDescriptor::default()
                };
                let format =
                    ImageFormat { order: 0x10b0 + random(16) as u32, channel: 0x10d0 + random(16) as u32 };
                made(|e| clCreateImage(a, 0, In::of(&[format]), In::of(&[d]), 0, e)).map_or_else(
                    |c| c,
                    |m| {
                        new = m;
                        0
                    },
                )
            }
            18 | 19 => {
                let (origin, region) = ([offset, n as usize, 0], [size.min(9), random(4), 1]);
                let (origin, region) = (In::of(&origin), In::of(&region));
                match random(4) {
                    0 => clEnqueueReadImage(a, b, 1, origin, region, 0, 0, at, count, list, Out::NULL),
                    1 => clEnqueueWriteImage(a, b, 1, origin, region, size, 0, at, count, list, Out::NULL),
                    2 => clEnqueueFillImage(a, b, In::of(&[1; 4]), origin, region, count, list, Out::NULL),
                    _ => clEnqueueCopyImage(a, b, c, origin, origin, region, count, list, Out::NULL),
                }
            }
            20 => {
                let (origin, region) = ([0, n as usize, 0], [size.min(9), 1, 1]);
                let (mut row, mut slice) = (0, 0);
                let (row, slice) = (Out::to(&mut row), Out::to(&mut slice));
                let (origin, region) = (In::of(&origin), In::of(&region));
                let flags = n.into();
                made(|e| {
                    clEnqueueMapImage(a, b, 1, flags, origin, region, row, slice, 0, In::NULL, Out::NULL, e)
                })
                .map_or_else(|c| c, |p| clEnqueueUnmapMemObject(a, b, p.0, 0, In::NULL, Out::NULL))
            }
            21 => {
                made(|e| clCreateSampler(a, n & 1, cl::ADDRESS_NONE + random(6) as u32, cl::FILTER_LINEAR, e))
                    .map_or_else(|c| c, |sampler| clReleaseSampler(sampler))
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
    assert_eq!(PANICS.load(Ordering::Relaxed), 0);
}
