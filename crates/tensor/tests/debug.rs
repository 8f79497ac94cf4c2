//! The checks of `NETCL_DEBUG`, each with a defect that it must find.
#![allow(clippy::unwrap_used, clippy::panic)] // a test

use netcl_device::{Buffer, Device, ErrorKind, Settings};
use netcl_kernel::{Kernel, Operand};
use netcl_tensor::graph::Graph;
use netcl_tensor::{DType, Result, Tensor, tape};

fn device(name: &str, checks: &[&str]) -> Device {
    let debug = checks.iter().map(|c| (*c).to_owned()).collect();
    Device::open(name, &Settings { debug, ..Settings::from_env() }).unwrap()
}

fn names() -> Vec<String> {
    vec!["sim".into(), std::env::var("NETCL_TEST_DEVICE").unwrap_or_else(|_| "auto".into())]
}

fn message<T>(result: Result<T>) -> String {
    result.err().map_or_else(|| panic!("nothing was found"), |e| e.message().to_owned())
}

#[test]
fn unknown_checks_are_refused_by_name() {
    let settings = Settings { debug: vec!["nans".into()], ..Settings::default() };
    let error = Device::open("sim", &settings).err().unwrap();
    assert!(error.message().contains("\"nans\" is unknown") && error.message().contains("did you mean nan?"));
}

#[test]
fn a_nan_is_found_where_it_is_made() {
    for name in names() {
        let device = device(&name, &["nan"]);
        let x = Tensor::from_f32(&device, [2, 3], &[1.0, 2.0, 3.0, 4.0, -5.0, 6.0], DType::F32).unwrap();
        let found = message(tape::layer(7, || x.log()));
        assert!(found.contains("the forward of log in layer 7"), "{found}");
        assert!(
            found.contains("first NaN at [1, 1]") && found.contains("input 0 [2, 3] is finite"),
            "{found}"
        );
        // The gradient of a square root at 0 is infinite.
        let x = Tensor::from_f32(&device, [2], &[1.0, 0.0], DType::F32).unwrap().parameter("x");
        let y = x.sqrt().unwrap().sum(&[], false).unwrap();
        let found = message(y.backward());
        assert!(found.contains("the backward of sqrt") && found.contains("first inf at [1]"), "{found}");
        // Finite values pass, also without the tape. Integers are not checked.
        assert_eq!(x.exp().unwrap().softmax(-1).unwrap().dims(), [2]);
        // Results within a captured step cannot be checked.
        let refused = Graph::capture(&device, || x.exp()).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
    }
}

/// A kernel that writes one element outside of y, before its start or after its end.
static PAST: Kernel = Kernel::new(
    "past",
    "__kernel void past(__global float *y, const ulong n, const ulong behind) {
         const ulong i = get_global_id(0);
         if (i < n) y[i] = 1.0f;
         if (i == 0) y[behind ? n + 2 : (ulong)0 - 3] = 2.0f;
     }",
);

#[test]
fn a_write_past_a_buffers_end_is_found_with_kernel_and_buffer() {
    for name in names() {
        let device = device(&name, &["bounds"]);
        let y = {
            let _tag = device.tag("planted");
            Tensor::zeros(&device, [37], DType::F32).unwrap()
        };
        let run = |behind: u64| {
            PAST.launch("past").items(64).local([64, 1, 1]).write(&y).scalar(37u64).scalar(behind).run()
        };
        let found = message(run(1));
        assert!(found.contains("past"), "{found}");
        if !device.capabilities().simulated {
            assert!(found.contains("bounds: kernel past (past) wrote to byte 156 of argument 0, a buffer of 148 bytes (planted)"), "{found}");
            let found = message(run(0));
            assert!(found.contains("wrote to byte -12 of argument 0"), "{found}");
        }
        // There are no other findings, for many shapes.
        for n in [1, 5, 100, 1000] {
            let x = Tensor::ones(&device, [n, 7], DType::F32).unwrap().parameter("x");
            let w = Tensor::ones(&device, [7, 3], DType::F32).unwrap().parameter("w");
            let loss =
                x.matmul(&w).unwrap().tanh().unwrap().log_softmax(-1).unwrap().sum(&[], false).unwrap();
            loss.backward().unwrap();
        }
    }
}

/// A buffer that reports more bytes than it has.
struct Wrong(Buffer);

impl Operand for Wrong {
    fn buffer(&self) -> &Buffer {
        &self.0
    }
    fn offset(&self) -> usize {
        0
    }
    fn bytes(&self) -> usize {
        self.0.bytes() + 4
    }
}

static NOTHING: Kernel = Kernel::new("nothing", "__kernel void nothing(__global float *y) { }");

#[test]
fn an_argument_beyond_its_buffer_is_found() {
    for name in names() {
        let device = device(&name, &["shapes"]);
        let y = Tensor::zeros(&device, [16], DType::F32).unwrap();
        let run = |operand: &Wrong| NOTHING.launch("nothing").items(1).local([1, 1, 1]).write(operand).run();
        let found = message(run(&Wrong(y.storage().clone())));
        assert!(
            found.contains(
                "nothing: shapes: argument 0 is declared to span 68 bytes from byte 0 on, of a buffer of 64"
            ),
            "{found}"
        );
        let x = Tensor::ones(&device, [3, 4], DType::F32).unwrap().parameter("x");
        let y = x.transpose(0, 1).unwrap().softmax(-1).unwrap().slice(0, 1..3).unwrap();
        y.sum(&[], false).unwrap().backward().unwrap();
    }
}
